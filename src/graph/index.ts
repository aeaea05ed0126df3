/** Graphs: their form in memory, ONNX in and out, and passes over them. Runs in a browser; files are in `file.ts`. */
export * from './ir.ts';
export { type EncodeOptions, type ExternalLocation, encodeChunks, encodeModel } from './encode.ts';
export { type DecodeOptions, decodeModel, newestOpset, oldestOpset } from './decode.ts';
export type { ExternalData } from './decode-tensor.ts';
export { prune } from './prune.ts';
export { specialise } from './specialise.ts';
export { verify } from './verify.ts';
export { upgrade } from './upgrade.ts';
