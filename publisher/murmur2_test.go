package publisher

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
)

// TestMurmur2IsJavas uses the values of Kafka's UtilsTest.testMurmur2.
func TestMurmur2IsJavas(t *testing.T) {
	for s, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string": -1486304829, "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2(s)); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", s, got, want)
		}
		if got := int32(murmur2([]byte(s))); got != want {
			t.Errorf("murmur2 of the bytes of %q = %d, want %d", s, got, want)
		}
	}
}

func TestPartitionsAreThoseOfKafkaGosMurmur2(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	balancer := kafka.Murmur2Balancer{Consistent: true}
	for range 5000 {
		key := make([]byte, 1+rng.IntN(70))
		for i := range key {
			key[i] = byte(rng.Uint32())
		}
		n := 1 + rng.IntN(60)
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		if got, want := partitionOf(string(key), n), balancer.Balance(kafka.Message{Key: key}, all...); got != want {
			t.Fatalf("key %x of %d partitions: %d, want %d", key, n, got, want)
		}
	}
}

func TestKeylessEventIsHashedByID(t *testing.T) {
	used := map[int]bool{}
	for range 200 {
		e := event.Event{ID: event.NewID()}
		p := choose(&e, 8)
		if p != partitionOf(fmt.Sprint(e.ID), 8) || p != choose(&e, 8) {
			t.Fatalf("event %s: partition %d", e.ID, p)
		}
		used[p] = true
	}
	if len(used) != 8 {
		t.Errorf("keyless events use %d partitions of 8", len(used))
	}
}
