import { type MessageInitShape, create, toBinary } from '@bufbuild/protobuf';
import { ModelProtoSchema, TensorProto_DataType as DataType } from 'onnx-buf';
import { expect } from 'vitest';
import { GhostgradError } from '../../src/errors.ts';
import { decodeModel } from '../../src/graph/decode.ts';

type Plain<M> = Exclude<M, { $typeName: string }>;
type Model = Plain<MessageInitShape<typeof ModelProtoSchema>>;
export type GraphInit = Plain<NonNullable<Model['graph']>>;

/** An input or output of unknown length. */
export const vector = (name: string, elemType: DataType = DataType.FLOAT): NonNullable<GraphInit['input']>[number] => ({
  name,
  type: {
    value: { case: 'tensorType', value: { elemType, shape: { dim: [{ value: { case: 'dimParam', value: 'n' } }] } } },
  },
});

/** A model written by hand, from x to y unless it says otherwise. */
export const encoded = (graph: GraphInit, model: Model = {}): Uint8Array =>
  toBinary(
    ModelProtoSchema,
    create(ModelProtoSchema, {
      irVersion: 8n,
      opsetImport: [{ domain: '', version: 17n }],
      ...model,
      graph: { name: 'g', input: [vector('x')], output: [vector('y')], ...graph },
    }),
  );
export const relu = { opType: 'Relu', input: ['x'], output: ['y'] };
/** Expects one clear error that names the file. */
export const refused = (bytes: Uint8Array, message: RegExp): void => {
  expect(() => decodeModel(bytes, { where: 'model.onnx' })).toThrow(GhostgradError);
  expect(() => decodeModel(bytes, { where: 'model.onnx' })).toThrow(message);
  expect(() => decodeModel(bytes, { where: 'model.onnx' })).toThrow(/model\.onnx/);
};
