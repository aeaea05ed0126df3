/** Where a run stands, as far as a progress line tells it. */
export interface ProgressState {
  readonly step: number;
  readonly steps: number;
  /** Spent so far and at the end; null without privacy. */
  readonly epsilon: { readonly spent: number; readonly planned: number } | null;
  readonly examplesPerSecond: number;
  readonly secondsLeft: number;
  /** Mean loss of the drawn examples, not covered by ε; null when none was drawn. */
  readonly loss: number | null;
}

/** The part of a terminal stream that progress needs. */
export interface ProgressStream {
  readonly isTTY?: boolean | undefined;
  readonly columns?: number | undefined;
  write(text: string): unknown;
}

export interface Progress {
  update(state: ProgressState): void;
  /** Ends the line. */
  done(): void;
}

interface ProgressOptions {
  /** Seconds between two lines where the stream is no terminal; default 10. */
  readonly interval?: number;
  readonly now?: () => number;
}

/**
 * Live progress on a stream: one line rewritten in place at most ten times a second on a terminal, else a line every
 * `interval` seconds.
 */
export function progress(stream: ProgressStream, options: ProgressOptions = {}): Progress {
  const line = liveLine(stream, options);
  return { update: (state) => line.show(() => progressLine(state), state.step === state.steps), done: line.done };
}

/** Live progress of `what` counted up to a total: `1200/6920 examples · 310 a second · 18 s left`. */
export function counter(stream: ProgressStream, what: string, options: ProgressOptions = {}) {
  const { now = seconds } = options;
  const line = liveLine(stream, options);
  let first: { readonly at: number; readonly done: number } | undefined;
  return {
    update: (done: number, of: number): void => {
      first ??= { at: now(), done };
      const speed = (done - first.done) / (now() - first.at);
      const rate = speed > 0 ? ` · ${Math.round(speed)} a second · ${duration((of - done) / speed)} left` : '';
      line.show(() => `${done}/${of} ${what}${rate}`, done === of);
    },
    done: line.done,
  };
}

const seconds = (): number => performance.now() / 1000;

function liveLine(stream: ProgressStream, { interval = 10, now = seconds }: ProgressOptions) {
  const live = stream.isTTY === true;
  const every = live ? 0.1 : interval;
  let shown = now();
  let written = false;
  return {
    /** @param last whether it is shown however soon it comes */
    show: (text: () => string, last: boolean): void => {
      if (now() - shown < every && !last) return;
      shown = now();
      written = true;
      stream.write(live ? `\r\x1b[2K${text().slice(0, Math.max(1, (stream.columns ?? 120) - 1))}` : `${text()}\n`);
    },
    done: (): void => {
      if (live && written) stream.write('\n');
      written = false;
    },
  };
}

/** `step 1200/4687 · ε 1.52 of 3.00 · 8120 examples/s · 2 min 41 s left · loss 0.432 (not covered by ε)` */
export function progressLine({ step, steps, epsilon, examplesPerSecond, secondsLeft, loss }: ProgressState): string {
  return [
    `step ${step}/${steps}`,
    epsilon === null ? 'no privacy' : `ε ${epsilon.spent.toFixed(2)} of ${epsilon.planned.toFixed(2)}`,
    `${Math.round(examplesPerSecond)} examples/s`,
    `${duration(secondsLeft)} left`,
    `loss ${loss === null ? '–' : loss.toPrecision(3)} (not covered by ε)`,
  ].join(' · ');
}

/** `41 s`, `2 min 41 s`, `3 h 2 min` */
export function duration(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}
