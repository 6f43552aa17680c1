package operator

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// FenceResult is the result of Operator.Fence.
type FenceResult struct {
	// Before and Epoch name the old and the new numbering, as events carry them (ce_epoch).
	Before string `json:"before"`
	Epoch  string `json:"epoch"`
	// LastID was the position of the sequence of ids, KnownID the highest id in the outbox. If LastID was lower,
	// Forwarded is true and the sequence was set to KnownID.
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

// Fence begins a new numbering, as is required after a restore from a backup: the numbers of a restored database have
// been used before, and consumers in watermark mode would drop events with such numbers. It raises the incarnation,
// takes every lane from its owner and raises its fence, so that no number of an old block is used any more, and sets
// the sequence of ids forward if it lags behind the table, as it may be after a logical copy. It never sets it back. It
// makes the rows of outbox_lane and outbox_meta that are missing.
//
// Running relays take the lanes again by themselves; events that were being published are published again under the
// same ids. Inboxes remove the ids that they know. Consumers in watermark mode stop at the first event of the new
// numbering until an operator accepts it: they cannot tell which events they have applied. A fence without need costs
// no more than that.
//
// It fails if a sequence that lags cannot be locked within 5 s, because a producer's transaction is open, or if
// the role may not set it: then nothing has changed.
func (o *Operator) Fence(ctx context.Context, reason string) (f FenceResult, err error) {
	var waiting, claimed int64 // before any lock: to count a hundred million rows takes minutes
	if err := o.db.QueryRow(ctx, o.q(sql.Waiting)).Scan(&waiting, &claimed); err != nil {
		return f, fmt.Errorf("relay: fence: counting what waits: %w", err)
	}
	err = o.act(ctx, audit.Fence, reason, func(tx pgx.Tx) (audited, error) {
		f = FenceResult{Waiting: waiting, Claimed: claimed}
		if _, err := tx.Exec(ctx, o.q(sql.LockTimeout), lockTimeout); err != nil {
			return audited{}, err
		}
		if _, err := tx.Exec(ctx, o.q(sql.LockLanes)); err != nil {
			return audited{}, fmt.Errorf("locking the lanes: %w", err)
		}
		if err := o.makeRows(ctx, tx); err != nil {
			return audited{}, err
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

// makeRows makes the lanes and the numbering that are missing.
func (o *Operator) makeRows(ctx context.Context, tx pgx.Tx) error {
	var missing int
	var unnumbered bool
	err := tx.QueryRow(ctx, o.q(sql.Unfit)).Scan(&missing, &unnumbered, nil)
	if err == nil && missing > 0 {
		_, err = tx.Exec(ctx, o.q(sql.MakeLanes))
	}
	if err == nil && unnumbered {
		_, err = tx.Exec(ctx, o.q(sql.MakeMeta))
	}
	if pgerr.Is(err, pgerr.InsufficientPrivilege) {
		return fmt.Errorf("outbox_lane lacks %d of its 32 rows, and outbox_meta may lack its row; run this as the "+
			"owner of the tables, who may make them: %w", missing, err)
	}
	return err
}

// forward sets the sequence of ids to the highest known id, if it lags.
func (o *Operator) forward(ctx context.Context, tx pgx.Tx, f *FenceResult) error {
	read := func() error {
		// In this order: otherwise an id that is drawn in between would seem unknown to the sequence.
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
