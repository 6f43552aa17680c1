package guard

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// StepKey derives the key that one step of an operation gives downstream: a UUID (version 8) of the tenant, the
// operation, the caller's key and the step's name, the same in every attempt, process and release. It is never the
// caller's key itself, which another tenant may use as well, and no two steps of an operation share one.
//
// Its life is the caller's key's: a key that is used for a new intent, after its tombstone is gone, derives the same
// step keys, and a provider that still knows them answers as before. Where that may happen, take a key of an id that
// the operation made for itself, such as provider_payment_<payment id>, and give it to [Op.CallAs].
func StepKey(k idempotency.Key, step string) string {
	var b []byte
	for _, part := range []string{k.Tenant, k.Operation, k.Value, step} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	// Fixed for ever: another namespace would make other keys of the same operation.
	namespace := uuid.MustParse("0c7c1a5e-6c1f-5b0e-9d43-0f0a3f7f2a10")
	return uuid.NewHash(sha256.New(), namespace, b, 8).String()
}

// open is the first step whose outcome is not recorded.
func open(steps []store.Step) (store.Step, bool) {
	i := slices.IndexFunc(steps, func(s store.Step) bool {
		return s.State == store.StepSent ||
			s.State == store.StepUndoing
	})
	if i < 0 {
		return store.Step{}, false
	}
	return steps[i], true
}

// asked says whether a provider was asked anything, whatever it answered.
func asked(steps []store.Step) bool {
	return slices.ContainsFunc(steps, func(s store.Step) bool { return s.Key != "" || s.State == store.StepUndoing })
}
