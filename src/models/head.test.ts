import { describe, expect, it } from 'vitest';
import { buildModel } from './index.ts';
import { bodyOf, withHead } from './head.ts';

const model = buildModel({ name: 'cnn-tanh' }, { seed: 1 });

describe('a head', () => {
  it('takes the place of what stands behind a value', () => {
    const before = model.nodes.at(-1)!.inputs[0]!;
    const headed = withHead(model, { output: before, classes: 3 }, [32], 1);
    expect(headed.outputs).toEqual([{ name: 'logits', dtype: 'float32', shape: ['batch', 3] }]);
    expect(headed.nodes.at(-1)).toMatchObject({ op: 'Gemm', inputs: [before, 'head.weight', 'head.bias'] });
    expect(headed.nodes).toHaveLength(model.nodes.length);
    expect(headed.initializers.get('head.weight')!.shape).toEqual([3, 32]);
    // The old last layer is gone.
    expect(headed.initializers.size).toBe(model.initializers.size);
  });

  it('flattens features of several axes, and goes on the only output by default', () => {
    const headed = withHead(bodyOf(model, model.nodes.find(({ op }) => op === 'MaxPool')!.outputs[0]), { classes: 2 }, [16, 13, 13]);
    expect(headed.nodes.at(-2)).toMatchObject({ op: 'Flatten' });
    expect(headed.initializers.get('head.weight')!.shape).toEqual([2, 16 * 13 * 13]);
  });

  it('begins at zero, near it or as linear layers do, the same for a seed', () => {
    const weightOf = (options: object, seed = 1): Float32Array =>
      withHead(model, { classes: 4, ...options }, [10], seed).initializers.get('head.weight')!.data as Float32Array;
    expect(weightOf({ init: 'zero' }).every((x) => x === 0)).toBe(true);
    const near = weightOf({});
    expect(Math.max(...near.map(Math.abs))).toBeLessThan(1e-3);
    expect(Math.max(...near.map(Math.abs))).toBeGreaterThan(1e-5);
    weightOf({ scale: 2 }).forEach((x, i) => { expect(x / 2e4).toBeCloseTo(near[i]!, 9); });
    expect(Math.max(...weightOf({ init: 'usual' }).map(Math.abs))).toBeGreaterThan(0.1);
    expect(weightOf({})).toEqual(near);
    expect(weightOf({}, 2)).not.toEqual(near);
    expect(withHead(model, { classes: 2, bias: -10 }, [10]).initializers.get('head.bias')!.data).toEqual(Float32Array.of(-10, -10));
  });

  it('is refused where there is none of its name, no feature, or one already', () => {
    const before = model.nodes.at(-1)!.inputs[0]!;
    const says = (output: string) => () => withHead(model, { classes: 2, output }, [3]);
    expect(says(before.replace('t', ''))).toThrow(new RegExp(`no such value[^]*head.output[^]*did you mean "${before}"`));
    expect(says('nowhere')).toThrow(new RegExp(`"nowhere"[^]*head.output: ${before} puts it in place of the last layer`));
    expect(() => withHead(model, { classes: 2 }, [])).toThrow('a head needs features');
    const headed = withHead(model, { classes: 2, output: before }, [32]);
    expect(() => withHead(headed, { classes: 2 }, [2])).toThrow(new RegExp(`has a head already[^]*head.output: ${before} `));
  });

  it('takes the place of an earlier one', () => {
    const before = model.nodes.at(-1)!.inputs[0]!;
    const headed = withHead(model, { classes: 2, output: before, init: 'usual' }, [32], 1);
    const again = withHead(headed, { classes: 7, output: before }, [32], 1);
    expect(again.initializers.get('head.weight')!.shape).toEqual([7, 32]);
    expect(again.nodes).toHaveLength(headed.nodes.length);
  });
});
