import { create, toBinary } from '@bufbuild/protobuf';
import { ModelProtoSchema, TensorProto_DataType as DataType } from 'onnx-buf';

/** The output that {@link withUnread} adds. */
export const unread = 'ghostgrad.unread';

/**
 * The model with one more output, the first: an empty sequence, which onnxruntime-node 1.30 cannot hand over.
 *
 * When a run is done, it copies each output into a new array, whether or not it was written where the caller wanted it:
 * memory and time for another copy of every gradient. Where the caller has all outputs already, the copies are not
 * wanted, and asking for this one ends the run before the first of them, with an error that `ort.js` knows.
 */
export function withUnread(model: Uint8Array): Uint8Array<ArrayBuffer> {
  const sequence = { case: 'tensorType' as const, value: { elemType: DataType.FLOAT } };
  const extra = toBinary(ModelProtoSchema, create(ModelProtoSchema, {
    graph: {
      node: [{ opType: 'SequenceEmpty', name: unread, output: [unread] }],
      output: [{ name: unread, type: { value: { case: 'sequenceType', value: { elemType: { value: sequence } } } } }],
    },
  }));
  // Messages that follow one another are one, whose lists are joined.
  const joined = new Uint8Array(extra.length + model.length);
  joined.set(extra);
  joined.set(model, extra.length);
  return joined;
}
