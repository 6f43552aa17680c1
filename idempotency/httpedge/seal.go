package httpedge

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/effectonce/effectonce/idempotency"
)

// headerSealed stands in a stored result whose header and body are encrypted, and names the key.
const headerSealed = "Effectonce-Sealed"

// ErrSealed: what a store has cannot be read with the keys at hand: the key is not in the ring, or the bytes were changed or moved.
var ErrSealed = errors.New("a sealed result cannot be opened")

// Sealer encrypts what is stored of an answer, header and body, with AES-GCM, so that readers of the store or of its backups see neither. Code,
// Failure, Resource and Schema stay readable: an expired key still tells them. The tenant, operation and key are authenticated with it: a
// body that is moved to another's record does not open. What was stored before there was a Sealer is read as it is. Safe for concurrent use.
type Sealer struct {
	current string
	keys    map[string]cipher.AEAD
}

// NewSealer makes a Sealer that seals with the key named current and opens with any of keys, each of 16, 24 or 32 bytes. To rotate: add the new
// key everywhere, then make it current, and remove the old one when everything sealed with it has expired. A key is
// good for 2^32 answers (NIST SP 800-38D, 8.3: nonces are random).
func NewSealer(current string, keys map[string][]byte) (*Sealer, error) {
	s := &Sealer{current: current, keys: map[string]cipher.AEAD{}}
	for id, key := range keys {
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("sealing key %q: it has %d bytes; want 16, 24 or 32", id, len(key))
		}
		if s.keys[id], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, fmt.Errorf("sealing key %q: %w", id, err)
		}
	}
	if s.keys[current] == nil {
		return nil, fmt.Errorf("the current sealing key %q is not among the keys", current)
	}
	return s, nil
}

// sealed is what the ciphertext holds of a result.
type sealed struct {
	Header map[string][]string `json:"h,omitempty"`
	Body   []byte              `json:"b"`
}

// Seal returns res for storing under k. One without header and body is returned as it is.
func (s *Sealer) Seal(k idempotency.Key, res idempotency.Result) (idempotency.Result, error) {
	if res.Body == nil && len(res.Header) == 0 {
		return res, nil
	}
	plain, err := json.Marshal(sealed{Header: res.Header, Body: res.Body})
	if err != nil {
		return res, fmt.Errorf("sealing a result: %w", err)
	}
	res.Body = s.keys[s.current].Seal(nil, nil, plain, scope("result", k))
	res.Header = map[string][]string{headerSealed: {s.current}}
	return res, nil
}

// Open returns a stored result as it was before Seal. An error matches ErrSealed. A result that is not sealed, or whose body has expired, is returned
// as it is.
func (s *Sealer) Open(k idempotency.Key, res idempotency.Result) (idempotency.Result, error) {
	ids := res.Header[headerSealed]
	if len(ids) != 1 {
		return res, nil
	}
	plain, err := s.open(ids[0], res.Body, scope("result", k))
	if err != nil {
		return res, err
	}
	var was sealed
	if err := json.Unmarshal(plain, &was); err != nil {
		return res, fmt.Errorf("%w: %w", ErrSealed, err)
	}
	res.Header, res.Body = was.Header, was.Body
	return res, nil
}

func (s *Sealer) open(id string, data, about []byte) ([]byte, error) {
	gcm := s.keys[id]
	if gcm == nil {
		return nil, fmt.Errorf("%w: its key %q is not among the keys", ErrSealed, id)
	}
	plain, err := gcm.Open(nil, nil, data, about)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSealed, err)
	}
	return plain, nil
}

// scope binds a ciphertext to its place; lengths keep two scopes from having the same bytes.
func scope(what string, k idempotency.Key) []byte {
	var b []byte
	for _, part := range []string{what, k.Tenant, k.Operation, k.Value} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return b
}

// Store returns a store that seals results before they are kept in inner, and opens them again: for a guard; Recovering is for its
// recovery. InTx is the Postgres store's own: there,
// Seal inside the work and Open what InTx returned. Inputs and the data of steps are inner's as they are: keep secrets out of commands.
func (s *Sealer) Store(inner idempotency.Store) idempotency.Store {
	return sealedStore{Store: inner, seal: s}
}

// Recoverable is a store that recovery works on.
type Recoverable interface {
	idempotency.Store
	idempotency.Recoverer
}

// Recovering is Store for a recovery worker: without it, what recovery completes is kept in the open.
func (s *Sealer) Recovering(inner Recoverable) Recoverable {
	return recoveringStore{sealedStore: sealedStore{Store: inner, seal: s}, Recoverer: inner}
}

type recoveringStore struct {
	sealedStore
	idempotency.Recoverer // what it hands out is unfinished: it has no result
}

type sealedStore struct {
	idempotency.Store
	seal *Sealer
}

// Finish seals what it stores. Sent again it has other bytes, which changes nothing: the first ones were kept.
func (s sealedStore) Finish(ctx context.Context, l idempotency.Lease, res idempotency.Result, keep idempotency.Retention) error {
	res, err := s.seal.Seal(l.Key, res)
	if err != nil {
		return err
	}
	return s.Store.Finish(ctx, l, res, keep)
}

// Claim opens what it found. What it cannot open is Indefinite: the work is done, and its answer is there for who has the key.
func (s sealedStore) Claim(ctx context.Context, r idempotency.Request, opt idempotency.ClaimOptions) (idempotency.Claimed, error) {
	c, err := s.Store.Claim(ctx, r, opt)
	// Of another command nothing is shown, so nothing is opened.
	if err == nil && !c.Won && r.Matches(c.Record.Fingerprint) {
		c.Record.Result, err = s.seal.Open(r.Key, c.Record.Result)
		err = idempotency.Indefinite(err)
	}
	return c, err
}

// Get opens what it found.
func (s sealedStore) Get(ctx context.Context, k idempotency.Key) (idempotency.Record, bool, error) {
	rec, found, err := s.Store.Get(ctx, k)
	if err == nil && found {
		rec.Result, err = s.seal.Open(k, rec.Result)
		err = idempotency.Indefinite(err)
	}
	return rec, found, err
}
