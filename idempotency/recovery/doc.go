// Package recovery resolves operations whose outcome is unknown: their owner died, or a provider did not answer. It
// never guesses, and never repeats an effect that may have happened.
//
//	w, err := recovery.New(store, map[string]recovery.Handler{
//		"payment.create": {Probe: askTheBank, Resume: createPayment},
//	}, recovery.Config{})
//	...
//	group.Go(func() error { return w.Run(ctx) })
//
// A [Worker] claims keys whose outcome is unknown, each under a lease and a new fencing token, so that two workers
// never process the same. It asks the provider about each open step by its downstream key ([Probe]), records the answer
// as a recovery point, and then continues the work (Resume), undoes it (Compensate), or releases the key. If the answer
// is not known yet, the worker retries with growing delays; in the end the operation is stuck, and a person must
// resolve it.
//
// No software can resolve a call to a provider that takes no key and cannot be asked: such an operation is stuck at
// once. Let a person approve such calls, reconcile them daily, or choose a provider that takes keys.
package recovery
