// Reads a JSON array of resources from standard input and checks those of the Prometheus operator and of KEDA against their schemas.
// Prints one line per mistake; NODE_PATH says where the models are.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const models = (path) => import(pathToFileURL(`${process.env.NODE_PATH}/@kubernetes-models/${path}`));
const monitoring = await models("prometheus-operator/monitoring.coreos.com/v1/index.js");
const keda = await models("keda/keda.sh/v1alpha1/index.mjs");
const kinds = { ServiceMonitor: monitoring.ServiceMonitor, PodMonitor: monitoring.PodMonitor, PrometheusRule: monitoring.PrometheusRule, ScaledObject: keda.ScaledObject };

let checked = 0;
for (const resource of JSON.parse(readFileSync(0, "utf8"))) {
  const Kind = kinds[resource.kind];
  if (!Kind) {
    console.log(`${resource.kind}: no schema is known`);
    continue;
  }
  try {
    new Kind(resource).validate();
    checked += 1;
  } catch (error) {
    console.log(`${resource.kind} ${resource.metadata.name}: ${error.message}`);
  }
}
console.error(`${checked} checked`);
