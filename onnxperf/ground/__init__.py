"""What every room stands on: errors, output, tables, fitting, rules of operators, modules, the version."""
