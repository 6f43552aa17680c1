// Package client is the caller's side of idempotency: one key per intent, the same one in every retry of it, and an
// honest verdict when the retries are over.
//
//	c := &http.Client{Transport: client.New(client.Config{})}
//	res, err := c.Do(req) // a POST gets an Idempotency-Key, and is repeated with it while that may help
//	switch client.Outcome(res, err) {
//	case client.Done:     // it happened, once
//	case client.NotDone:  // it certainly did not; a new attempt may have a new key
//	case client.Unknown:  // it may have happened: only ever repeat it with the same key
//	}
//
// An intent that must survive this process (a payment that is in the caller's own table) has its key made with [NewKey]
// and stored beside it before the first attempt; set it as the header Idempotency-Key, and it is kept. When an earlier
// call for the intent ended Unknown, or with its process, repeat it with the context of [Repeat]. A changed intent,
// above all another body, needs a new key: the server refuses the old one with 422.
package client
