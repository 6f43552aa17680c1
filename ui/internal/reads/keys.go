package reads

import (
	"context"

	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
)

// InKeys is the side of idempotency keys.
const InKeys = "keys"

// Idempotency returns an operator of the idempotency keys in a viewer's name.
func (d *Database) Idempotency(name string) (*keysoperator.Operator, error) {
	return keysoperator.New(d.Pool, d.Schema, name)
}

// lookAtKeys counts the open operations, if the database has idempotency keys.
func (d *Database) lookAtKeys(ctx context.Context) (counts *keysoperator.Counts, may bool, err error) {
	o, err := d.Idempotency(Viewer)
	if err != nil {
		return nil, false, err
	}
	here, may, err := o.Access(ctx)
	if err == nil && here {
		counts = new(keysoperator.Counts)
		*counts, err = o.Count(ctx)
	}
	if err != nil {
		return nil, false, err
	}
	return counts, may, nil
}

// unknownOperations reads the operations with an unknown outcome.
func (d *Database) unknownOperations(ctx context.Context) ([]keysoperator.Operation, error) {
	return d.OperationsOf(ctx, keysoperator.Filter{Limit: Page + 1})
}

// OperationsOf reads the operations that a filter lets through.
func (d *Database) OperationsOf(ctx context.Context, f keysoperator.Filter) ([]keysoperator.Operation, error) {
	o, err := d.Idempotency(Viewer)
	if err != nil {
		return nil, err
	}
	stuck, err := o.Stuck(ctx, f)
	if err != nil {
		return nil, err
	}
	unknown, err := o.Unknown(ctx, f)
	return append(stuck, unknown...), err
}
