package main

import (
	"context"
	"fmt"
	"math/rand/v2"
)

// memoryCase measures the peak memory of a relay that drains large events, and very many events.
func memoryCase(ctx context.Context, s *stack, o options, rep *report) error {
	const mebi = 1 << 20
	rep.note("memory", "Peak memory (VmHWM) of a process that runs only the relay. The goal is less than 200 MiB")
	for _, one := range []struct {
		name    string
		events  int
		payload [][]byte
	}{
		{fmt.Sprintf("%d events of 1 MiB", o.memoryLarge), o.memoryLarge, incompressible(16, mebi)},
		{fmt.Sprintf("%d events of %d bytes", o.memoryEvents, payloadSize), o.memoryEvents, payloads(distinct)},
	} {
		if one.events == 0 {
			continue
		}
		topic, drop, err := s.topic(ctx, 4*mebi)
		if err != nil {
			return err
		}
		err = s.fill(ctx, topic, one.events, one.payload)
		var f figure
		if err == nil {
			f, err = s.measured(ctx, one.name, job{
				Kind: "relay", URL: s.pg.URL(), Brokers: s.brokers, Topic: topic, Events: one.events,
				Pumps: o.pumps, ClaimEvents: o.claimEvents, Compression: o.compression, Profile: o.profile,
			})
		}
		drop()
		if err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		f.Case, f.Turn = "memory", 1
		rep.add(f)
	}
	return nil
}

// incompressible returns payloads that neither a codec nor TOAST can compress.
func incompressible(n, size int) [][]byte {
	rng := rand.NewChaCha8([32]byte{1})
	out := make([][]byte, n)
	for i := range out {
		out[i] = make([]byte, size)
		_, _ = rng.Read(out[i]) // never fails
	}
	return out
}
