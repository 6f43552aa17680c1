package operator

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// FenceResult is what Operator.Fence did.
type FenceResult struct {
	// Before and Epoch name the numbering that was given up and the one that begins, as events carry it (ce_epoch).
	Before string `json:"before"`
	Epoch  string `json:"epoch"`
	// LastID is where the sequence of ids stood, KnownID the highest id that the outbox still knows. Where LastID was
	// the lower one, Forwarded is true and the sequence stands at KnownID now.
	LastID    int64 `json:"last_id"`
	KnownID   int64 `json:"known_id"`
	Forwarded bool  `json:"forwarded"`
	// Waiting is how many events the outbox had before, Claimed how many of them were between claim and settle. All of
	// them will be published; after a restore, many of them for the second time, under the same ids.
	Waiting int64 `json:"waiting"`
	Claimed int64 `json:"claimed"`
}

// lockTimeout is how long a change of the whole outbox waits for a lock: a producer's transaction that stays open must
// not make it wait, and every other producer behind it.
const lockTimeout = "5s"

// Fence begins a new numbering, as it must after a restore from a backup: the numbers of a restored database have been
// given out before, and consumers that compare numbers would drop what comes under them. It raises the incarnation,
// takes every lane from its owner and raises its fence, so that no number of an old block is used any more, and turns
// the sequence of ids forward when it is behind the table, as it may be after a logical copy. It never turns it back.
//
// Running relays take the lanes again by themselves; what they were publishing is published again under the same ids.
// Inboxes remove what they know. Consumers in watermark mode stop at the first event of the new numbering until
// somebody accepts it: they cannot tell what they have seen. Fencing when it was not needed costs no more than that.
//
// It fails when a sequence that is behind cannot be locked within 5 s, because a producer's transaction is open, or
// when the role may not set it: then nothing has changed.
func (o *Operator) Fence(ctx context.Context, reason string) (f FenceResult, err error) {
	var waiting, claimed int64 // before any lock: to count a hundred million rows takes minutes
	if err := o.db.QueryRow(ctx, o.q(sql.Waiting)).Scan(&waiting, &claimed); err != nil {
		return f, fmt.Errorf("relay: fence: counting what waits: %w", err)
	}
	err = o.act(ctx, "fence", reason, func(tx pgx.Tx) (audited, error) {
		f = FenceResult{Waiting: waiting, Claimed: claimed}
		if _, err := tx.Exec(ctx, o.q(sql.LockTimeout), lockTimeout); err != nil {
			return audited{}, err
		}
		if _, err := tx.Exec(ctx, o.q(sql.LockLanes)); err != nil {
			return audited{}, fmt.Errorf("locking the lanes: %w", err)
		}
		if err := o.forward(ctx, tx, &f); err != nil {
			return audited{}, err
		}
		if _, err := tx.Exec(ctx, o.q(sql.Fence)); err != nil {
			return audited{}, err
		}
		if err := tx.QueryRow(ctx, o.q(sql.Epoch)).Scan(&f.Before); err != nil {
			return audited{}, err
		}
		err := tx.QueryRow(ctx, o.q(sql.NewIncarnation)).Scan(&f.Epoch)
		return audited{detail: map[string]any{
			"before": f.Before, "epoch": f.Epoch, "last_id": f.LastID, "known_id": f.KnownID, "forwarded": f.Forwarded,
		}}, err
	})
	return f, err
}

// forward turns the sequence of ids to the highest one known, when it is behind.
func (o *Operator) forward(ctx context.Context, tx pgx.Tx, f *FenceResult) error {
	read := func() error {
		// In this order: an id that is drawn in between must not look like one that the sequence does not know.
		if err := tx.QueryRow(ctx, o.q(sql.KnownIDs)).Scan(&f.KnownID); err != nil {
			return err
		}
		return tx.QueryRow(ctx, o.q(sql.LastID)).Scan(&f.LastID)
	}
	if err := read(); err != nil || f.LastID >= f.KnownID {
		return err
	}
	if _, err := tx.Exec(ctx, o.q(sql.LockEvents)); err != nil {
		return fmt.Errorf("the sequence of ids is at %d and the outbox has id %d; to mend it, transactions that have "+
			"appended must end first: %w",
			f.LastID, f.KnownID, err)
	}
	if err := read(); err != nil || f.LastID >= f.KnownID {
		return err
	}
	f.Forwarded = true
	_, err := tx.Exec(ctx, o.q(sql.Forward), f.KnownID)
	if pgerr.Is(err, pgerr.InsufficientPrivilege) {
		return fmt.Errorf("the sequence of ids is at %d and the outbox has id %d; run this as the owner of the "+
			"tables, who may set it: %w", f.LastID, f.KnownID, err)
	}
	return err
}
