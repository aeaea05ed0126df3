import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fromBinary } from '@bufbuild/protobuf';
import { ModelProtoSchema, TensorProtoSchema } from 'onnx-buf';
import { decodeTensor } from '../../src/graph/decode-tensor.ts';
import type { Tensor } from '../../src/tensor/tensor.ts';

/** Where Debian's package libonnx-testdata, or `ONNX_TESTDATA`, keeps the backend tests of ONNX. */
export const testdata = process.env['ONNX_TESTDATA'] ?? '/usr/share/libonnx-testdata/data';

/** The version of ONNX whose cases the rules and the report speak of, told by the number of its cases. */
export const version = '1.12.0';
const numberOfCases = 1072;

const folders = ['node', 'simple', 'pytorch-operator', 'pytorch-converted'] as const;

const casesFound = folders.map((kind) => join(testdata, kind)).filter((folder) => existsSync(folder))
  .reduce((sum, folder) => sum + readdirSync(folder).length, 0);

/** Why the cases cannot be run here, and what to do; undefined where they can. */
export const missing: string | undefined =
  casesFound === 0 ? `not installed: "apt-get install libonnx-testdata" on Debian 12, or let ONNX_TESTDATA name their folder`
    : casesFound !== numberOfCases ? `${casesFound} cases instead of the ${numberOfCases} of ONNX ${version} in ${testdata}`
      : undefined;

/** One of ONNX's backend tests: a model, and what it must give for some inputs. */
export interface Case {
  /** `node/acos`, say. */
  readonly name: string;
  readonly folder: string;
  /** The operator that it tests; {@link several} where that is no single one. */
  readonly operator: string;
  /** Whether it is spelled out in other operators: ONNX's own definition of the operator. */
  readonly expanded: boolean;
}

/** What cases of more than one operator are listed under. */
export const several = 'several operators';

/** Every case of the four folders that hold their own models, in alphabetical order. */
export function findCases(): readonly Case[] {
  return folders.flatMap((kind) => {
    const found = readdirSync(join(testdata, kind)).sort();
    return found.map((name): Case => {
      const folder = join(testdata, kind, name);
      const original = name.replace(/_expanded$/, '');
      const expanded = original !== name && found.includes(original);
      return {
        name: `${kind}/${name.replace(/^test_/, '')}`, folder, expanded,
        operator: soleOperator(expanded ? join(testdata, kind, original) : folder) ?? several,
      };
    });
  });
}

/** The one operator of a case's model, constants aside. The model need not be one that can be imported. */
function soleOperator(folder: string): string | undefined {
  const { graph } = fromBinary(ModelProtoSchema, readFileSync(join(folder, 'model.onnx')));
  const operators = new Set((graph?.node ?? []).map(({ opType }) => opType).filter((op) => op !== 'Constant'));
  return operators.size === 1 ? [...operators][0] : undefined;
}

export const modelOf = ({ folder }: Case): string => join(folder, 'model.onnx');

/** Inputs and outputs in the order of the model's. */
export interface DataSet {
  readonly inputs: readonly Tensor[];
  readonly outputs: readonly Tensor[];
}

export const dataSetsOf = ({ folder }: Case): readonly DataSet[] =>
  readdirSync(folder).filter((name) => name.startsWith('test_data_set_')).sort().map((name) => ({
    inputs: readAll(join(folder, name), 'input'), outputs: readAll(join(folder, name), 'output'),
  }));

const readAll = (folder: string, kind: 'input' | 'output'): readonly Tensor[] =>
  readdirSync(folder).filter((name) => name.startsWith(`${kind}_`) && name.endsWith('.pb'))
    .sort((a, b) => numberIn(a) - numberIn(b))
    .map((name) => decodeTensor(fromBinary(TensorProtoSchema, readFileSync(join(folder, name))), join(folder, name)));

const numberIn = (name: string): number => Number(/\d+/.exec(name)?.[0]);
