import { describe, expect, it } from 'vitest';
import { findCases, missing } from './cases.ts';
import { runCase } from './run.ts';
import { type Result, coverage, report, unusedSkips, verdictOf } from './summary.ts';

// The reporter does not name what it skips.
if (missing !== undefined) console.warn(`ONNX's backend tests are skipped: ${missing}`);
const cases = missing === undefined ? findCases() : [];
const operators = [...new Set(cases.map(({ operator }) => operator))].sort();
const results: Result[] = [];

describe.skipIf(missing !== undefined)(`ONNX's backend tests${missing === undefined ? '' : `: ${missing}`}`, () => {
  it.each(operators)('%s', async (operator) => {
    const found: Result[] = [];
    for (const one of cases.filter((c) => c.operator === operator)) found.push({ one, outcome: await runCase(one) });
    results.push(...found);
    const failures = found.flatMap((result) => {
      const verdict = verdictOf(result);
      return verdict.kind === 'failed' ? [`${result.one.name}: ${verdict.message}`] : [];
    });
    expect(failures, failures.join('\n')).toEqual([]);
  });

  it('have a case for every rule that skips some', () => {
    expect(unusedSkips(cases)).toEqual([]);
  });

  it('are passed by at least 95 of 100 cases that ask for a gradient', () => {
    expect(coverage(results.map(verdictOf))).toBeGreaterThanOrEqual(0.95);
  });

  it('are reported in docs/conformance.md', async () => {
    await expect(report(results)).toMatchFileSnapshot('../../docs/conformance.md');
  });
});

it.runIf(process.env['CONFORMANCE'] === 'required')('ONNX\'s backend tests are there', () => {
  expect(missing).toBeUndefined();
});
