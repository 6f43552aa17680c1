package consumer

import (
	"bytes"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// A transaction that stays open stops a partition for everybody who reads committed records. It is named, now and then,
// and its end too; one that ends soon is not.
func TestOpenTransactionIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := &partition{Partition: Partition{"t", 3}, c: &Consumer{cfg: Config{
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		}}}
		count := func(s string) int { return bytes.Count(log.Bytes(), []byte(s)) }
		held := &fetchResponse{highWatermark: 12, stable: 7}
		idle := &fetchResponse{highWatermark: 12, stable: 12}
		throttled := &fetchResponse{highWatermark: -1, stable: -1}
		var o openTransaction
		through := func(d time.Duration) {
			for until := time.Now().Add(d); time.Now().Before(until); passes(time.Second) {
				o.watch(p, 7, held)
				o.watch(p, 7, throttled)
			}
		}
		for range 20 {
			through(50 * time.Second)
			o.watch(p, 12, idle)
		}
		if log.Len() > 0 {
			t.Errorf("transactions that end: %s", log.Bytes())
		}
		if through(time.Hour); count("an open Kafka transaction holds") != 12 || count("offset=7 log_ends=12") != 12 {
			t.Errorf("an hour: %s", log.Bytes())
		}
		o.watch(p, 12, idle)
		o.watch(p, 12, idle)
		if count("no open transaction holds") != 1 {
			t.Errorf("its end: %s", log.Bytes())
		}
	})
}

// The answer says where the first open transaction begins, in every version.
func TestAnswerHasTheStableOffset(t *testing.T) {
	t.Parallel()
	for _, version := range []int16{minFetchVersion, 11, logFetchVersion} {
		res, err := decodeFetch(fetchAnswer(version, "t", uuid.New(), 0, 0)[8:], version)
		if err != nil || res.stable != 7 || res.highWatermark != 12 {
			t.Errorf("v%d: %+v, %v", version, res, err)
		}
	}
}
