import { dirname, join } from 'node:path';
import { type Files, explained, nodeFiles, syncFolder, writeFileAtomically } from '../files.ts';
import { writeModel } from '../graph/file.ts';
import type { Graph } from '../graph/ir.ts';
import type { SavedAdapters } from '../models/lora.ts';
import type { Certificate } from '../privacy/index.ts';
import { safetensorsChunks } from '../tensor/safetensors.ts';

/** What stands in the folder of a model. */
export interface ReleaseContents {
  readonly model: Graph;
  readonly adapters?: SavedAdapters | undefined;
  readonly certificate: Certificate;
  /** The text of `ledger.jsonl`. */
  readonly ledger: string;
  readonly result: object;
}

export interface WriteOptions {
  /** Makes `privacy.json.sig`, the signature of the very bytes of `privacy.json`. */
  readonly sign?: ((bytes: Uint8Array) => Uint8Array) | undefined;
  readonly files?: Files | undefined;
}

/** `privacy.json`, and its signature if it is signed. */
export function saveCertificate(folder: string, certificate: Certificate, { sign, files = nodeFiles }: WriteOptions): void {
  const text = Buffer.from(`${JSON.stringify(certificate, null, 2)}\n`);
  writeFileAtomically(join(folder, 'privacy.json'), [text], undefined, files);
  const signature = join(folder, 'privacy.json.sig');
  // That of an earlier certificate would be taken for a forgery.
  if (sign === undefined) explained('write', signature, () => files.remove(signature));
  else writeFileAtomically(signature, [sign(text)], undefined, files);
}

export const saveAdapters = (folder: string, { tensors, metadata }: SavedAdapters, files: Files): void =>
  writeFileAtomically(join(folder, 'adapters.safetensors'), safetensorsChunks(tensors, metadata), undefined, files);

/** The folder of one model of a run that made several, whole enough to be handed on by itself. */
export function saveRelease(
  folder: string, { model, adapters, certificate, ledger, result }: ReleaseContents, { sign, files = nodeFiles }: WriteOptions,
): void {
  explained('write', folder, () => {
    files.makeFolder(folder);
    syncFolder(dirname(folder), files);
  });
  const write = (name: string, text: string): void => writeFileAtomically(join(folder, name), [Buffer.from(text)], undefined, files);
  write('ledger.jsonl', ledger);
  saveCertificate(folder, certificate, { sign, files });
  writeModel(join(folder, 'model.onnx'), model, { files });
  if (adapters !== undefined) saveAdapters(folder, adapters, files);
  write('result.json', `${JSON.stringify(result, null, 2)}\n`);
}
