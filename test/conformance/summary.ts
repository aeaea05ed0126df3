import { type Case, several, version } from './cases.ts';
import type { Outcome } from './run.ts';
import { type Skip, skipOf, skips } from './skips.ts';

export interface Result {
  readonly one: Case;
  readonly outcome: Outcome;
}

export type Verdict =
  /** `gradient`: whether a gradient was compared, or the case has none: no float input leads to a float output. */
  | { readonly kind: 'passed'; readonly gradient: boolean }
  | { readonly kind: 'skipped'; readonly reason: string; readonly differentiable: boolean }
  | { readonly kind: 'failed'; readonly message: string };

/** Holds an outcome against what is known of the case: a case passes, or fails as a rule says it does. */
export function verdictOf({ one, outcome }: Result): Verdict {
  const skip = skipOf(one);
  if (outcome.passed) {
    return skip === undefined ? { kind: 'passed', gradient: outcome.gradient }
      : { kind: 'failed', message: `passes, although it is listed as skipped: ${skip.reason}` };
  }
  if (skip?.stage === outcome.stage) {
    return { kind: 'skipped', reason: skip.reason, differentiable: skip.differentiable ?? false };
  }
  return { kind: 'failed', message: `${outcome.stage}: ${outcome.message}` };
}

/** Rules that speak of no case. */
export const unusedSkips = (cases: readonly Case[]): readonly Skip[] =>
  skips.filter((skip) => !cases.some((one) => skipOf(one) === skip));

interface Counts {
  readonly cases: number;
  readonly gradient: number;
  readonly plain: number;
  readonly failed: number;
  /** Reasons with the number of cases skipped for each. */
  readonly skipped: ReadonlyMap<string, number>;
  readonly uncovered: number;
}

function count(verdicts: readonly Verdict[]): Counts {
  const skipped = new Map<string, number>();
  for (const v of verdicts) if (v.kind === 'skipped') skipped.set(v.reason, (skipped.get(v.reason) ?? 0) + 1);
  const number = (test: (v: Verdict) => boolean): number => verdicts.filter(test).length;
  return {
    cases: verdicts.length, skipped,
    gradient: number((v) => v.kind === 'passed' && v.gradient),
    plain: number((v) => v.kind === 'passed' && !v.gradient),
    failed: number((v) => v.kind === 'failed'),
    uncovered: number((v) => v.kind === 'skipped' && v.differentiable),
  };
}

/** Of the cases that ask for a gradient, the part whose gradient was compared and is right. */
export function coverage(verdicts: readonly Verdict[]): number {
  const { gradient, failed, uncovered } = count(verdicts);
  return gradient / (gradient + failed + uncovered);
}

const sum = (numbers: Iterable<number>): number => [...numbers].reduce((a, b) => a + b, 0);

const reasonsOf = ({ skipped }: Counts): string =>
  [...skipped].sort(([a], [b]) => (a < b ? -1 : 1)).map(([reason, n]) => `${reason} (${n})`).join('; ');

const row = (name: string, { cases, gradient, plain, failed, skipped }: Counts, reasons: string): string =>
  `| ${[name, cases, gradient, plain, sum(skipped.values()), failed, reasons].join(' | ')} |`;

/** The table as a page of documentation. */
export function report(results: readonly Result[]): string {
  const judged = results.map((result) => ({ operator: result.one.operator, verdict: verdictOf(result) }));
  const names = [...new Set(judged.map(({ operator }) => operator))]
    .sort((a, b) => (a === several ? 1 : b === several ? -1 : a < b ? -1 : 1));
  const all = count(judged.map(({ verdict }) => verdict));
  const rows = names.map((name) => {
    const counts = count(judged.filter(({ operator }) => operator === name).map(({ verdict }) => verdict));
    return row(name, counts, reasonsOf(counts));
  });
  return `# Conformance with ONNX's backend tests

Every model of the folders node, simple, pytorch-operator and pytorch-converted of ONNX's own backend tests (ONNX ${version}) is
imported and upgraded; the types inferred for the shapes of its data must be those of its expected outputs and those that
the file declares; the specialised graph must give the expected outputs in ONNX Runtime; and where a floating-point output
follows from a floating-point input, the gradient of every such input must be that of finite differences through
ONNX Runtime. Expanded forms, which spell an operator out in others, are counted with their operator.

**gradient**: passed, with gradients compared. **no gradient**: passed, and there is no gradient to compare. The test
\`test/conformance\` keeps this page true; \`npx vitest run test/conformance -u\` writes it.

Of ${all.gradient + all.failed + all.uncovered} cases that ask for a gradient, ${all.gradient} pass; ${all.failed} are wrong.

| operator | cases | gradient | no gradient | skipped | failed | why skipped |
|---|---|---|---|---|---|---|
${rows.join('\n')}
${row('**all**', all, '')}
`;
}
