"""What commands do beyond training and recognition. Any of these folders may be absent.

An app may import the contract, base, components, core and apps/web, and no other app; zoo also imports convert. Nothing
below imports an app: without this folder `asr.train`, `asr.transcribe`, `asr.evaluate`, `asr.align`, `asr.average`,
`asr.merge` and `asr.model` still work. The docstring of each app says which commands need it, and what the others lose.

    web/              parts of HTML pages, of which the other apps make theirs
    bulk/             jobs of many hours: parts, failures, engines
    check/            what every component must do; asr.check and the tests check it
    convert/          import and export of models of other toolkits
    doctor/           problems of a corpus, and of a plan to train on it: memory, time, batch size, learning rate
    export/           models for other software: ONNX programs, a page for the browser, the folder with its card
    finetune/         a user's data in one of several formats to manifests, and the settings of a short training
    language_models/  training and perplexity of neural models; n-gram models with more words, or mixed; decoder
                      settings tuned on dev sets
    pretrain/         objectives on speech without texts: BEST-RQ
    report/           reports of trainings, evaluations and comparisons as HTML pages
    runs/             a table of runs
    serve/            the web page, the HTTP endpoint, and the WebSocket for live speech
    shards/           a corpus packed into tar files; indexes of other toolkits' tar files
    zoo/              wav2vec 2.0, HuBERT, w2v-BERT 2.0, granite TurboCTC, LASR (MedASR), in the form of a plugin
"""
