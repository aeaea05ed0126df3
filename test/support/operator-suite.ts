import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Composite, isComposite } from '../../src/ops/composite.ts';
import type { Operator } from '../../src/ops/operator.ts';
import { operators } from '../../src/ops/table.ts';
import { checkBatchRule } from './batch-check.ts';
import { batchPlace, withRows } from './batched.ts';
import { checkGradient, checkTypes } from './gradient-check.ts';
import { type Domain, type Operand, type Sample, batchResult, build, floats, gradientContext } from './operator-sample.ts';
import { checkParameterUse } from './parameter-check.ts';

/** How one operator is tested. */
export interface OperatorCase {
  /** Nodes with operands, of which at least one carries the batch. */
  readonly samples: fc.Arbitrary<Sample>;
  /** Whether a gradient flows back; default true. */
  readonly flows?: boolean;
  /** Inputs that may be parameters; default none. */
  readonly parameters?: readonly number[];
}

/**
 * Tests every operator of a family: types, gradients and batch rules against ONNX Runtime, and what it says of
 * parameters against its own gradients one row at a time.
 */
export function describeOperators<K extends keyof typeof operators>(
  cases: Readonly<Record<K, OperatorCase>>, numRuns = 20,
): void {
  describe.each(Object.entries<OperatorCase>(cases))('%s', (name, { samples, flows = true, parameters = [] }) => {
    it('has the types that ONNX Runtime computes', async () => {
      await fc.assert(fc.asyncProperty(samples, async (sample) => { await checkTypes(sample); }), { numRuns });
    });

    it('keeps rows apart where its batch rule says so, in the gradients too', async () => {
      const verdicts = new Set<string>();
      await fc.assert(fc.asyncProperty(samples, async (sample) => {
        verdicts.add(await checkBatchRule(sample));
      }), { numRuns });
      expect(verdicts).toContain('proved');
    });

    const entry: Operator | Composite = operators[name as K];
    if (isComposite(entry)) throw new Error(`${name} is composite: its samples go to test/support/expansion-check.ts`);
    const rule = entry.gradient;
    if (flows) {
      it('has the gradient of finite differences', async () => {
        await fc.assert(fc.asyncProperty(samples, (sample) => checkGradient(sample)), { numRuns });
      });
    } else if (!('reason' in rule)) {
      it('lets nothing flow back', () => {
        fc.assert(fc.property(samples, (sample) => {
          const built = build(sample);
          const everything = sample.inputs.map((_, k) => k);
          expect(rule(gradientContext(built, sample, everything)).every((g) => g === undefined)).toBe(true);
        }), { numRuns });
      });
    }

    if (parameters.length > 0) {
      it.each(parameters)('says what each row gives to a parameter as input %i', async (index) => {
        let checked = 0;
        await fc.assert(fc.asyncProperty(samples, async (sample) => {
          const operand = sample.inputs[index];
          if (operand === undefined || operand.batch !== undefined || operand.constant === true) return;
          if ('violation' in batchResult(build(sample), sample)) return;
          checked++;
          await checkParameterUse(sample, index);
        }), { numRuns: 2 * numRuns });
        expect(checked).toBeGreaterThan(0);
      });
    }
  });
}

/** One operand with the batch in some axis, alone or merged with others. */
export const batchedOperand = (domain?: Domain, rank = { min: 1, max: 4 }): fc.Arbitrary<Operand> =>
  dimensions(rank).chain((shape) => batchPlace(shape.map((_, i) => i)).chain((batch) =>
    floats(withRows(shape, batch), domain).map((value) => ({ value, batch }))));

export const dimensions = ({ min, max }: { min: number; max: number }): fc.Arbitrary<number[]> =>
  fc.array(fc.constantFrom(1, 2, 2, 4), { minLength: min, maxLength: max });

/** How an operand relates to the shape it is broadcast to. */
interface Placement {
  readonly carries: boolean;
  readonly dropped: number;
  readonly ones: readonly boolean[];
  /** Whether an operand without batch has the full size along the batch axis all the same. */
  readonly rowByRow: boolean;
}

const placement: fc.Arbitrary<Placement> = fc.record({
  carries: fc.boolean(), dropped: fc.nat({ max: 3 }), ones: fc.array(fc.boolean(), { minLength: 4, maxLength: 4 }),
  rowByRow: fc.nat({ max: 9 }).map((n) => n === 0),
});

/**
 * Operands that broadcast together, one for each domain: at least one carries the batch, the others are inputs without
 * it, of which a few differ from row to row.
 */
export const broadcastOperands = (domains: readonly (Domain | undefined)[]): fc.Arbitrary<Operand[]> =>
  fc.record({
    shape: dimensions({ min: 1, max: 4 }), certain: fc.nat({ max: domains.length - 1 }),
    placements: fc.tuple(...domains.map(() => placement)),
  }).chain(({ shape, certain, placements }) => batchPlace(shape.map((_, i) => i)).chain((at) => {
    const full = withRows(shape, at);
    return fc.tuple(...placements.map((p, i) => {
      const carries = p.carries || i === certain;
      const dropped = Math.min(p.dropped, carries ? at.axis : shape.length);
      const own = full.map((n, axis) =>
        (axis === at.axis ? (carries || p.rowByRow ? n : 1) : p.ones[axis] === true ? 1 : n)).slice(dropped);
      const batch = carries ? { ...at, axis: at.axis - dropped } : undefined;
      return floats(own, domains[i]).map((value): Operand => ({ value, batch }));
    }));
  }));
