package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// shapesCase measures drains with few keys, large payloads or an open snapshot: anything that could slow them down.
func shapesCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("shapes", fmt.Sprintf("Drains of %d events of %d bytes: with %d keys, with one key in each lane, and "+
		"with an open snapshot that was taken before the first delete. Then payloads of three sizes, compared with "+
		"plain Publish of as many bytes", o.events, payloadSize, keys))
	if err := s.shapesOfKeys(ctx, o, rep); err != nil {
		return err
	}
	if err := s.shapesOfPayloads(ctx, o, rep); err != nil {
		return err
	}
	return s.exec(ctx, queryEmptyOutbox)
}

func (s *stack) shapesOfKeys(ctx context.Context, o options, rep *report) error {
	const many, few, pinned = "100000 keys", "32 keys, one in each lane", "100000 keys, under a snapshot"
	rows, err := s.db.Query(ctx, queryKeyPerLane)
	if err != nil {
		return err
	}
	perLane, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	payload := payloads(distinct)
	for turn := range o.repeats + 1 {
		for _, one := range []struct {
			name   string
			keys   []string
			pinned bool
		}{{many, nil, false}, {few, perLane, false}, {pinned, nil, true}} {
			f, _, err := s.drainFilled(ctx, o, one.name, filling{
				n: o.events, payload: payload, keys: one.keys,
				pinned: one.pinned,
			}, 0)
			if err != nil {
				return fmt.Errorf("%s: %w", one.name, err)
			}
			f.Case, f.Turn = "shapes", turn
			rep.add(f)
		}
	}
	rep.ratio("shapes", pinned, many, 0.9)
	rep.ratio("shapes", few, many, 0.9)
	rep.ratio("shapes", many, few, 0.9)
	rep.peaks("shapes", "relay", many, few, pinned)
	return nil
}

// openSnapshot keeps a snapshot open, as a report or a dump does.
func (s *stack) openSnapshot(ctx context.Context) (closeSnapshot func(), err error) {
	tx, err := s.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, err
	}
	closeSnapshot = func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }
	if _, err := tx.Exec(ctx, queryPinSnapshot); err != nil {
		closeSnapshot()
		return nil, err
	}
	return closeSnapshot, nil
}

// shapesOfPayloads compares the relay with the publisher without a database, for payloads of several sizes.
func (s *stack) shapesOfPayloads(ctx context.Context, o options, rep *report) error {
	var relays []string
	for _, size := range []int{100, 4 << 10, 64 << 10} {
		relayed, published := fmt.Sprintf("%d bytes, relay", size), fmt.Sprintf("%d bytes, plain Publish", size)
		relays = append(relays, relayed)
		payload := payloadsOf(distinct, size)
		n := max(min(o.events, 2*o.events*payloadSize/size), 1)
		for turn := range o.repeats + 1 {
			f, _, err := s.drainFilled(ctx, o, relayed, filling{n: n, payload: payload}, 0)
			if err != nil {
				return fmt.Errorf("%s: %w", relayed, err)
			}
			p, err := s.publishSized(ctx, o, published, n, size)
			if err != nil {
				return fmt.Errorf("%s: %w", published, err)
			}
			for _, one := range []figure{f, p} {
				one.Case, one.Turn = "shapes", turn
				rep.add(one)
				rep.printf("    %.1f MB/s of payloads", one.Rate*float64(size)/1e6)
			}
		}
		rep.ratio("shapes", relayed, published, 0.4)
	}
	rep.peaks("shapes", "relay with payloads of other sizes", relays...)
	return nil
}

func (s *stack) publishSized(ctx context.Context, o options, name string, n, size int) (figure, error) {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return figure{}, err
	}
	defer drop()
	return s.measured(ctx, name, job{
		Kind: "publish", Brokers: s.brokers, Topic: topic, Events: n, Pumps: o.pumps,
		Compression: o.compression, PayloadSize: size,
	})
}
