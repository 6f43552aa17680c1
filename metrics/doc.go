// Package metrics provides the Prometheus metrics of docs/metrics.md for programs that embed a relay or a worker. The
// names are those of the relay binary, so its dashboard, alerts and runbooks apply.
//
//	m, err := metrics.NewRelay(prometheus.DefaultRegisterer)
//	...
//	kafka, err := publisher.NewKafka(brokers, publisher.Config{Pin: pin, Observer: m.Publisher()})
//	...
//	r, err := relay.New(db, kafka, relay.Config{Observer: m.Observer()})
//	...
//	group.Go(func() error { return r.Run(ctx) })
//	group.Go(func() error { return m.Run(ctx, r) }) // reads the metrics of the database every ten seconds
//
// For a worker:
//
//	m, err := metrics.NewWorker(prometheus.DefaultRegisterer, "ledger")
//	...
//	in, err := inbox.New(db, "ledger", inbox.Config{Observer: m.Inbox()})
//	...
//	c, err := consumer.New(in.Each(effect), brokers, topics, consumer.Config{Observer: m.Consumer()})
//	...
//	group.Go(func() error { return m.Run(ctx, in, c) })
//
// Each relay in a process needs its own registry or its own labels: see prometheus.WrapRegistererWith. No other package
// imports this one; for another metrics library, fill the Observers yourself.
package metrics
