// Package metrics gives a relay and a worker the figures that docs/metrics.md lists, for Prometheus: the same names,
// and so the same dashboard, alerts and runbooks, for the relay binary and for programs that embed the library.
//
//	m, err := metrics.NewRelay(prometheus.DefaultRegisterer)
//	...
//	kafka, err := publisher.NewKafka(brokers, publisher.Config{Pin: pin, Observer: m.Publisher()})
//	...
//	r, err := relay.New(db, kafka, relay.Config{Observer: m.Observer()})
//	...
//	group.Go(func() error { return r.Run(ctx) })
//	group.Go(func() error { return m.Run(ctx, r) }) // what is asked of the database, every ten seconds
//
// and for a worker
//
//	m, err := metrics.NewWorker(prometheus.DefaultRegisterer, "ledger")
//	...
//	in, err := inbox.New(db, "ledger", inbox.Config{Observer: m.Inbox()})
//	...
//	c, err := consumer.New(in.Each(effect), brokers, topics, consumer.Config{Observer: m.Consumer()})
//	...
//	group.Go(func() error { return m.Run(ctx, in, c) })
//
// Two relays in one process need registries, or labels, of their own: prometheus.WrapRegistererWith. The other rooms do
// not know this one: who measures otherwise fills their Observers himself.
package metrics
