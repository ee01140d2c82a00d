"""Language models that generate: prompts, next tokens, caches of keys and values, requests that arrive."""
