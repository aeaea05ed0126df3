import { createRequire } from 'node:module';
import { runtimeVersion } from '../runtime/version.ts';

const { version } = createRequire(import.meta.url)('../../package.json') as { readonly version: string };

/** The version of this package. */
export const ghostgradVersion = version;

/** What a certificate says a run was computed with. */
export const software = (): Readonly<Record<string, string>> => ({
  ghostgrad: ghostgradVersion,
  node: process.versions.node,
  onnxruntime: runtimeVersion(),
});
