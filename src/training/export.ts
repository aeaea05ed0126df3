import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { GhostgradError } from '../errors.ts';
import { explained, nodeFiles, writeFileAtomically } from '../files.ts';
import { readModel, writeModel } from '../graph/file.ts';
import { adapterNames } from '../models/lora.ts';
import { decodeSafetensors } from '../tensor/safetensors.ts';
import { sizeOf } from '../tensor/tensor.ts';
import { requireRun } from './run-folder.ts';

export interface Exported {
  readonly path: string;
  /** Numbers of the model that can be trained, or of the adapters. */
  readonly parameters: number;
  /** Adapters that the model keeps because the weights beside them are stored in few bits. */
  readonly adaptersKept: number;
}

/**
 * Takes the trained model out of a run's folder: a file that any ONNX runtime runs, with adapters merged into the weights.
 *
 * @param out the file to write, replaced as a whole
 * @param adapter whether to write the adapters alone instead, as PEFT-style safetensors
 * @throws GhostgradError where the run is not finished, has no adapters, or the file cannot be written
 */
export function exportRun(folder: string, { out, adapter = false }: { readonly out: string; readonly adapter?: boolean | undefined }): Exported {
  requireRun(folder, 'export');
  const source = join(folder, adapter ? 'adapters.safetensors' : 'model.onnx');
  if (!existsSync(join(folder, 'model.onnx'))) {
    throw new GhostgradError({
      what: 'the run has no model yet', where: folder, found: 'a run that is not finished', expected: 'model.onnx',
      fix: `finish it: ghostgrad train --resume ${folder}`,
    });
  }
  if (!existsSync(source)) {
    throw new GhostgradError({
      what: 'the run trained no adapters', where: folder, expected: 'a run with trainable: { lora: … }', fix: 'export the model, without --adapter',
    });
  }
  if (!existsSync(dirname(out))) {
    throw new GhostgradError({ what: 'there is no such folder', where: `--out ${out}`, expected: 'a file in a folder that exists' });
  }
  if (adapter) {
    const bytes = explained('read', source, () => readFileSync(source));
    const { tensors } = decodeSafetensors(bytes, source);
    writeFileAtomically(out, [bytes], undefined, nodeFiles);
    return { path: out, parameters: [...tensors.values()].reduce((sum, { shape }) => sum + sizeOf(shape), 0), adaptersKept: 0 };
  }
  const model = readModel(source);
  writeModel(out, model);
  const sizes = [...model.initializers].filter(([name, t]) => t.dtype === 'float32' && model.literals?.has(name) !== true);
  return { path: out, parameters: sizes.reduce((sum, [, { shape }]) => sum + sizeOf(shape), 0), adaptersKept: adapterNames(model).length };
}
