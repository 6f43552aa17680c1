// Package client makes HTTP requests idempotent at the caller: one key per intent, the same in every retry, and a
// verdict when the retries are over.
//
//	c := &http.Client{Transport: client.New(client.Config{})}
//	res, err := c.Do(req) // a POST gets an Idempotency-Key, and is retried with it
//	switch client.Outcome(res, err) {
//	case client.Done:     // it happened, once
//	case client.NotDone:  // it certainly did not; a new attempt may have a new key
//	case client.Unknown:  // it may have happened: repeat it with the same key only
//	}
//
// For an intent that must survive this process, such as a payment in the caller's table, make the key with [NewKey],
// store it before the first attempt, and set it as the header Idempotency-Key: the Transport keeps it. If an earlier
// call for the intent ended Unknown, or with its process, repeat it with the context of [Repeat]. A changed intent,
// such as one with another body, needs a new key: the server refuses the old one with 422.
package client
