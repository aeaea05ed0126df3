import { describe, expect, it } from 'vitest';
import { barChart, lineChart, scaleOf } from './plot.ts';

/** The names of the elements of an XML text in the order in which they open; throws where it is not well-formed. */
function elements(xml: string): string[] {
  const open: string[] = [];
  const names: string[] = [];
  const rest = xml.replace(/<(\/?)([a-z]+)((?: [a-zA-Z][\w-]*="[^"<&]*(?:&(?:amp|lt|gt|quot);[^"<&]*)*")*)(\/?)>/g, (_, end: string, name: string, __, empty: string) => {
    if (end === '/') expect(open.pop()).toBe(name);
    else {
      names.push(name);
      if (empty === '') open.push(name);
    }
    return '';
  });
  expect(open).toEqual([]);
  expect(rest.replaceAll(/&(amp|lt|gt|quot);/g, '')).not.toMatch(/[<>&]/);
  return names;
}

const numbers = (text: string, attribute: string, element: string): number[] =>
  [...text.matchAll(new RegExp(`<${element}[^>]* ${attribute}="([\\d.-]+)"`, 'g'))].map(([, value]) => Number(value));

const text = { title: 'Time < memory & "more"', description: 'What it shows' };

describe('scaleOf', () => {
  it('is linear from 0 with round steps', () => {
    const { at, ticks } = scaleOf([3, 47], 'linear', 400, 0);
    expect(ticks).toEqual([0, 10, 20, 30, 40, 50]);
    expect([at(0), at(25), at(50)]).toEqual([400, 200, 0]);
    expect(scaleOf([0.021], 'linear', 0, 1).ticks.at(-1)).toBeCloseTo(0.025);
    expect(scaleOf([1], 'linear', 0, 1).ticks).toHaveLength(6);
  });

  it('is logarithmic: equal factors are equal distances', () => {
    const { at, ticks } = scaleOf([1, 1000], 'log', 0, 300);
    expect(ticks.map((value) => Math.round(value))).toEqual([1, 10, 100, 1000]);
    expect(at(10) - at(1)).toBeCloseTo(at(1000) - at(100));
    expect(at(1)).toBeGreaterThan(0);
    expect(at(1000)).toBeLessThan(300);
    expect(scaleOf([16, 64], 'log', 0, 1).ticks).toEqual([16, 32, 64]);
  });
});

describe('lineChart', () => {
  const chart = lineChart({
    ...text, x: { label: 'positions', scale: 'log' }, y: { label: 'ms', scale: 'log' },
    series: [
      { name: 'ghost', points: [[100, 40], [10, 4], [1, 0]] },
      { name: 'predicted <ghost>', dashed: true, colour: 0, points: [[10, 4], [100, 400]] },
    ],
  });

  it('is well-formed, and says what it shows', () => {
    const names = elements(chart);
    expect(names.slice(0, 3)).toEqual(['svg', 'title', 'desc']);
    expect(chart).toContain('<title id="title">Time &lt; memory &amp; &quot;more&quot;</title>');
    expect(chart).toContain('<desc id="description">What it shows</desc>');
    expect(chart).toContain('role="img" aria-labelledby="title description"');
    expect(names.filter((name) => name === 'polyline')).toHaveLength(2);
  });

  it('places points by their values, from left to right, without those that have no logarithm', () => {
    const [measured, predicted] = [...chart.matchAll(/<polyline points="([^"]*)"/g)].map(([, points = '']) =>
      points.split(' ').map((point) => point.split(',').map(Number) as [number, number]));
    expect(measured).toHaveLength(2);
    expect(measured![0]).toEqual(predicted![0]);
    expect(measured![1]![0]).toBeCloseTo(predicted![1]![0]);
    // Ten times higher on the one than on the other, over twice the distance.
    expect((measured![0]![1] - predicted![1]![1]) / (measured![0]![1] - measured![1]![1])).toBeCloseTo(2, 1);
    expect(chart.match(/stroke-dasharray/g)).toHaveLength(2);
  });
});

describe('barChart', () => {
  it('draws bars from 0 in proportion, with a reference line', () => {
    const chart = barChart({
      ...text, y: 'ratio', groups: ['non-private', 'ghost'], reference: 1,
      series: [{ name: 'time', values: [1, 2] }, { name: 'memory', values: [1, 0.5] }],
    });
    elements(chart);
    const heights = numbers(chart, 'height', 'rect').slice(0, 4);
    expect(heights.map((height) => height / heights[0]!)).toEqual([1, 1, expect.closeTo(2, 2), expect.closeTo(0.5, 2)]);
    expect(chart).toContain('<title>ghost, memory: 0.5</title>');
    const tops = numbers(chart, 'y', 'rect');
    const bottoms = new Set(tops.slice(0, 4).map((y, i) => (y + heights[i]!).toFixed(1)));
    expect(bottoms.size).toBe(1);
    const reference = /y1="([\d.]+)"[^>]*stroke-dasharray="2 3"/.exec(chart)?.[1];
    expect(Number(reference)).toBeCloseTo(tops[0]!);
  });
});
