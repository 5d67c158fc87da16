#!/usr/bin/env python3
"""BLEU and chrF of two files of texts, by the package sacrebleu (pip install sacrebleu).

    tools/score_text.py OUTPUTS REFERENCES [--tokenize 13a|zh|char|intl|none] [--json]

A file is plain lines, or JSON lines (a name ending in .jsonl) of which the member "text" (--key NAME: another) is taken, so that the output of
`sheng generate` can be scored as it is. Line n of OUTPUTS is held against line n of REFERENCES. For Chinese use --tokenize zh.
"""
import argparse
import json
import pathlib
import sys


def read(path, key):
    """The texts of a file, one a line; ends the program with a sentence for a wrong one."""
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"score_text.py: {path} cannot be read: {error}")
    if lines and lines[-1] == "":
        lines.pop()
    if not str(path).endswith(".jsonl"):
        return lines
    texts = []
    for number, line in enumerate(lines, 1):
        try:
            text = json.loads(line)[key]
        except (ValueError, KeyError, TypeError) as error:
            sys.exit(f'score_text.py: {path} line {number}: an object with "{key}" is wanted ({type(error).__name__}: {error})')
        if not isinstance(text, str):
            sys.exit(f'score_text.py: {path} line {number}: "{key}" is {type(text).__name__}, wanted a string')
        texts.append(text)
    return texts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outputs")
    parser.add_argument("references")
    parser.add_argument("--key", default="text", help="member of JSON lines that holds the text")
    parser.add_argument("--tokenize", default="13a", choices=["13a", "zh", "char", "intl", "none"], help="how BLEU finds words")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    outputs, references = read(args.outputs, args.key), read(args.references, args.key)
    if not outputs or len(outputs) != len(references):
        sys.exit(f"score_text.py: {args.outputs} has {len(outputs)} texts and {args.references} {len(references)}; as many of each are wanted, at least one")
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError:
        sys.exit("score_text.py: the package sacrebleu is missing; `pip install sacrebleu`")
    bleu, chrf = BLEU(tokenize=args.tokenize), CHRF()
    scores = {"n": len(outputs), "bleu": bleu.corpus_score(outputs, [references]).score, "chrf": chrf.corpus_score(outputs, [references]).score}
    if args.json:
        print(json.dumps(scores | {"bleu_signature": str(bleu.get_signature()), "chrf_signature": str(chrf.get_signature())}))
    else:
        print(f"{scores['n']} texts: BLEU {scores['bleu']:.2f} ({bleu.get_signature()}), chrF {scores['chrf']:.2f} ({chrf.get_signature()})")


if __name__ == "__main__":
    main()
