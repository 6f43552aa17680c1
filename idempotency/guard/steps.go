package guard

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// StepKey returns the downstream key of a step: a UUID (version 8) of the tenant, the operation, the caller's key and
// the step's name, the same in every attempt, process and release. It differs between the steps of an operation, and
// between tenants with the same key.
//
// If a key is used for a new intent after the deletion of its tombstone, its step keys are the same, and a provider
// that still knows them gives the old answer. If that may happen, use a key with an id that the operation created, such
// as provider_payment_<payment id>, with [Op.CallAs].
func StepKey(k idempotency.Key, step string) string {
	var b []byte
	for _, part := range []string{k.Tenant, k.Operation, k.Value, step} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	// Never change it: another namespace would give the same step another key.
	namespace := uuid.MustParse("0c7c1a5e-6c1f-5b0e-9d43-0f0a3f7f2a10")
	return uuid.NewHash(sha256.New(), namespace, b, 8).String()
}

// openStep returns the first step whose outcome is not recorded.
func openStep(steps []store.Step) (store.Step, bool) {
	i := slices.IndexFunc(steps, func(s store.Step) bool {
		return s.State == store.StepSent ||
			s.State == store.StepUndoing
	})
	if i < 0 {
		return store.Step{}, false
	}
	return steps[i], true
}

// called reports whether any provider was called.
func called(steps []store.Step) bool {
	return slices.ContainsFunc(steps, func(s store.Step) bool { return s.Key != "" || s.State == store.StepUndoing })
}
