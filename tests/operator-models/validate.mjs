// Reads a JSON list of the Prometheus operator's resources, and prints a JSON list of their errors.
//
// The models ignore fields that they do not know, and the API server drops these silently. So this also reports the
// fields at which a model never looked.
import { readFileSync } from "node:fs";

function watched(value, path, unseen) {
  if (typeof value !== "object" || value === null) return value;
  const values = Array.isArray(value) ? [] : {};
  for (const key of Object.keys(value)) {
    unseen.add(`${path}/${key}`);
    values[key] = watched(value[key], `${path}/${key}`, unseen);
  }
  return new Proxy(values, {
    get(target, key) {
      unseen.delete(`${path}/${String(key)}`);
      return target[key];
    },
  });
}

const errors = [];
for (const resource of JSON.parse(readFileSync(0, "utf8"))) {
  const { apiVersion, kind } = resource;
  const { [kind]: Model } = await import(`@kubernetes-models/prometheus-operator/${apiVersion}/${kind}`);
  const unseen = new Set();
  try {
    Model.prototype.validate.call(watched(resource, "", unseen));
  } catch (error) {
    errors.push(`${kind} ${resource.metadata.name}: ${error.message}`);
  }
  errors.push(...[...unseen].map((path) => `${kind} ${resource.metadata.name}: ${path} is unknown`));
}
console.log(JSON.stringify(errors));
