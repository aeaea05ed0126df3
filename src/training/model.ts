import { GhostgradError } from '../errors.ts';
import { readModel } from '../graph/file.ts';
import type { Graph } from '../graph/ir.ts';
import { upgrade } from '../graph/upgrade.ts';
import { withLearnedConstants } from '../models/constants.ts';
import { inFloat32 } from '../models/float32.ts';
import { buildModel } from '../models/index.ts';
import { withFreeBatch } from '../models/rebatch.ts';
import { withOwnSettings } from '../models/sharing.ts';
import type { FloatTensor } from '../tensor/tensor.ts';
import { type LossName, isLoss } from './loss.ts';
import { type ModelReference, isModelFile } from './recipe.ts';

/**
 * The model in the form that everything here works on: in terms of the newest operator set, in float32, and with its
 * weights told from its constants, and for batches of any size. A model that is so already is given back as it is.
 *
 * @throws GhostgradError for a model that was exported for a batch of one example, where it cannot be rewritten
 */
export const prepareModel = (model: Graph): Graph => withOwnSettings(withLearnedConstants(withFreeBatch(inFloat32(upgrade(model)))));

/**
 * The model of an ONNX file, prepared ({@link prepareModel}).
 *
 * @throws GhostgradError when the file is missing, truncated or uses what cannot be read
 */
export const openModel = (path: string): Graph => prepareModel(readModel(path));

/**
 * The model that a recipe or a command line names.
 *
 * @param weights how a builder draws its initial weights: see {@link buildModel}
 * @throws GhostgradError when there is no such builder or file
 */
export function loadModel(
  reference: ModelReference,
  weights: Parameters<typeof buildModel>[1] = {},
): { readonly model: Graph; readonly output?: string } {
  if (typeof reference === 'string')
    return { model: isModelFile(reference) ? openModel(reference) : buildModel(reference, weights) };
  if (!('path' in reference)) return { model: buildModel(reference, weights) };
  const { path, output } = reference;
  return { model: openModel(path), ...(output !== undefined && { output }) };
}

/** The model with copies of other values of some parameters, and with what its file says about how it was trained. */
export function withParameters(
  model: Graph,
  parameters: ReadonlyMap<string, FloatTensor>,
  metadata: Graph['metadata'],
): Graph {
  const initializers = [...model.initializers].map(([name, before]) => {
    const now = parameters.get(name);
    return [name, now === undefined ? before : { ...now, data: now.data.slice() }] as const;
  });
  return { ...model, initializers: new Map(initializers), metadata: { ...model.metadata, ...metadata } };
}

/** The loss that a trained model's file names, if any. */
export function recordedLoss(model: Graph): LossName | undefined {
  const loss = model.metadata['ghostgrad.loss'];
  return isLoss(loss) ? loss : undefined;
}

/**
 * Copies of parameters' values, which training may change.
 *
 * @throws GhostgradError for one that is not float32
 */
export function copiesOf(model: Graph, names: readonly string[]): Map<string, FloatTensor> {
  return new Map(
    names.map((name) => {
      const value = model.initializers.get(name);
      if (value?.dtype !== 'float32') {
        throw new GhostgradError({
          what: 'a parameter cannot be trained',
          where: `parameter "${name}"`,
          found: value?.dtype ?? 'none',
          expected: 'float32',
        });
      }
      return [name, { dtype: 'float32', shape: value.shape, data: Float32Array.from(value.data as Float32Array) }];
    }),
  );
}
