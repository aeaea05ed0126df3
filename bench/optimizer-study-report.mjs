// The study's results as tables in Markdown and, where a path is given, a plot.
import { writeFileSync } from 'node:fs';
import { lineChart } from '../dist/bench/plot.js';

const unique = (values) => [...new Set(values)];
const percent = (x) => (100 * x).toFixed(1);

/** Mean over the seeds of one cell at one ε, and how many there are. */
function meanOf(runs, epsilon) {
  const own = runs.filter((run) => run.epsilon === epsilon).map((run) => run.accuracy);
  return own.length === 0 ? undefined : own.reduce((a, b) => a + b, 0) / own.length;
}

/** One table for each set, steps and batch: optimizers and initialisations down, ε across, test accuracy in percent. */
function tables(lines) {
  for (const set of unique(lines.map((line) => line.set))) {
    const own = lines.filter((line) => line.set === set);
    for (const combination of unique(own.map(({ steps, batch }) => `${steps}:${batch}`))) {
      const [steps, batch] = combination.split(':');
      const cells = own.filter((line) => `${line.steps}:${line.batch}` === combination);
      const epsilons = unique(cells.flatMap(({ epsilon }) => epsilon ?? [])).sort((a, b) => a - b);
      console.log(`\n${set}, ${steps} step${steps === '1' ? '' : 's'}, batch ${batch}\n`);
      console.log(`| optimizer, init | rate | ${epsilons.map((e) => `ε = ${e}`).join(' | ')} |\n|---|---|${epsilons.map(() => '---|').join('')}`);
      for (const cell of unique(cells.map(({ optimizer, init }) => `${optimizer}, ${init}`))) {
        const runs = cells.filter(({ optimizer, init }) => `${optimizer}, ${init}` === cell);
        const means = epsilons.map((epsilon) => meanOf(runs, epsilon));
        console.log(`| ${cell} | ${runs.find((run) => run.rate !== undefined)?.rate ?? ''} | ${means.map((m) => (m === undefined ? '' : percent(m))).join(' | ')} |`);
      }
    }
  }
}

/** One line for each set, optimizer, steps and batch that `plotted` names, e.g. `sst2:lamb:zero:10:N`. */
function plot(lines, plotted) {
  const series = plotted.map((name) => {
    const runs = lines.filter(({ set, optimizer, init, steps, batch }) => [set, optimizer, init, steps, batch].join(':') === name);
    const epsilons = unique(runs.flatMap(({ epsilon }) => epsilon ?? [])).sort((a, b) => a - b);
    const [, optimizer, init, steps, batch] = name.split(':');
    return { name: `${optimizer}, ${init}, ${steps} × ${batch}`, points: epsilons.map((epsilon) => [epsilon, 100 * meanOf(runs, epsilon)]) };
  });
  return lineChart({
    title: `Private heads, ${plotted[0].split(':')[0]}`, description: 'Test accuracy over epsilon, a line for each optimizer, initialisation, number of steps and batch size.',
    x: { label: 'ε', scale: 'log' }, y: { label: 'test accuracy, %' }, series,
  });
}

export function reported(lines, svg, plotted) {
  tables(lines);
  if (svg !== undefined) writeFileSync(svg, plot(lines, plotted));
}
