const special = ['<pad>', '<unk>', '<s>', '</s>'];

/** The text of a `tokenizer.json` with an id for each word, after `<pad>` 0, `<unk>` 1, `<s>` 2, `</s>` 3; `<s>` goes before a text. */
export const wordTokenizer = (words: readonly string[], changes: object = {}): string => JSON.stringify({
  version: '1.0', truncation: null, padding: null,
  added_tokens: special.map((content, id) => ({
    id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true,
  })),
  normalizer: null, pre_tokenizer: { type: 'WhitespaceSplit' },
  post_processor: {
    type: 'TemplateProcessing', single: [{ SpecialToken: { id: '<s>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
    pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
    special_tokens: { '<s>': { id: '<s>', ids: [2], tokens: ['<s>'] } },
  },
  decoder: null,
  model: {
    type: 'WordPiece', unk_token: '<unk>', continuing_subword_prefix: '##', max_input_chars_per_word: 100,
    vocab: Object.fromEntries([...special, ...words].map((word, id) => [word, id])),
  },
  ...changes,
});
