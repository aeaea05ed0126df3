import { createRequire } from 'node:module';

/** The version of ONNX Runtime that graphs are run by. */
export function runtimeVersion(): string {
  const { version } = createRequire(import.meta.url)('onnxruntime-node/package.json') as { readonly version: string };
  return version;
}
