// Netron's own reader on a model and, if given, an attachment: prints what it says of each node, as JSON.
import * as fs from 'fs';
import * as path from 'path';
import { pathToFileURL } from 'url';

const [folder, model, attachment] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(path.join(folder, `${file}.js`)).href);
const view = await load('view');
const base = await load('base');
const host = {
    environment: () => null,
    exception: (error) => { throw error; },
    event: () => {},
    require: load,
    request: async (file) => new base.BinaryStream(fs.readFileSync(path.join(folder, file))),
    asset: async (file) => fs.readFileSync(path.join(folder, file), 'utf-8'),
};
const context = (file) => ({
    identifier: path.basename(file),
    stream: new base.BinaryStream(fs.readFileSync(file)),
    entries: new Map(),
    require: load,
    asset: host.asset,
    fetch: async () => { throw new Error('not found'); },
});
const found = await new view.ModelFactoryService(host).open(context(model));
if (attachment && !await found.attachment.open(context(attachment))) {
    throw new Error('no attachment');
}
const plain = (list) => Object.fromEntries((list || []).map((x) => [x.name, x.value]));
const graph = found.modules[0];
console.log(JSON.stringify({
    model: plain(found.attachment.metrics.model(found)),
    nodes: graph.nodes.map((node) => [node.name, plain(node.metadata), plain(found.attachment.metrics.node(node))]),
}));
