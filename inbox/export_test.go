package inbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// DiscardEvent calls DiscardEvent of an operator of consumer "ledger". Package operator imports this one, so
// operator_test.go sets it.
var DiscardEvent func(ctx context.Context, db *pgxpool.Pool, schema string, id int64) error

// KeepProgressFresh has the next batch of each assigned partition find the progress just written, however long ago a
// busy machine wrote it.
func KeepProgressFresh(h Handler) { setWrittenAt(h, time.Now().Add(time.Hour)) }

// ProgressIsDue has the next batch of each assigned partition write its progress.
func ProgressIsDue(h Handler) { setWrittenAt(h, time.Time{}) }

func setWrittenAt(h Handler, at time.Time) {
	all := &h.(*handler).assignments
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, a := range all.of {
		a.mu.Lock()
		a.writtenAt = at
		a.mu.Unlock()
	}
}

// ReleaseOnce runs the released events that are due.
func ReleaseOnce(ctx context.Context, in *Inbox) error { return in.release(ctx) }

// Present reports that this program runs the consumer.
func Present(ctx context.Context, in *Inbox) error { return in.present(ctx) }

// PreparedLongAgo has an inbox that is prepared be so for an hour.
func PreparedLongAgo(in *Inbox) {
	long := time.Now().Add(-time.Hour)
	in.prepared.Store(&long)
}

// Runs reports whether Run was called.
func Runs(in *Inbox) bool { return in.running.Load() }

// WriteIdleProgress writes the progress that is due.
func WriteIdleProgress(ctx context.Context, in *Inbox) error { return in.writeIdleProgress(ctx) }
