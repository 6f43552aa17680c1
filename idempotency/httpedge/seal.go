package httpedge

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// headerSealed stands in a stored result whose header and body are encrypted, and names the key.
const headerSealed = "Effectonce-Sealed"

// ErrSealed: what a store has cannot be read with the keys at hand: the key is not in the ring, or the bytes were
// changed or moved.
var ErrSealed = errors.New("a sealed result cannot be opened")

// Sealer encrypts what is stored of an answer, header and body, with AES-GCM, so that readers of the store or of its
// backups see neither. Its Store does the same to a command's input and to what its steps gave. Code, Failure, Resource
// and Schema stay readable: an expired key still tells them. The tenant, operation and key are authenticated with it: a
// body that is moved to another's record does not open. What was stored before there was a Sealer is read as it is.
// Safe for concurrent use.
type Sealer struct {
	current string
	keys    map[string]cipher.AEAD
}

// NewSealer makes a Sealer that seals with the key named current and opens with any of keys, each of 16, 24 or 32
// bytes. To rotate: add the new key everywhere, then make it current, and remove the old one when everything sealed
// with it has expired. A key is good for 2^32 answers (NIST SP 800-38D, 8.3: nonces are random).
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

// Open returns a stored result as it was before Seal. An error matches ErrSealed. A result that is not sealed, or whose
// body has expired, is returned as it is.
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

// mark begins bytes that are sealed; the name of the key and a zero byte follow.
const mark = "\x00effectonce sealed\x00"

func (s *Sealer) sealBytes(plain, about []byte) []byte {
	return s.keys[s.current].Seal([]byte(mark+s.current+"\x00"), nil, plain, about)
}

// openBytes returns bytes as they were before sealBytes; what was stored before there was a Sealer is returned as it
// is.
func (s *Sealer) openBytes(data, about []byte) ([]byte, error) {
	rest, is := bytes.CutPrefix(data, []byte(mark))
	if !is {
		return data, nil
	}
	id, rest, _ := bytes.Cut(rest, []byte{0})
	return s.open(string(id), rest, about)
}

// openRecord opens what a record has of input, steps and result.
func (s *Sealer) openRecord(rec *store.Record) (err error) {
	if rec.Result, err = s.Open(rec.Key, rec.Result); err != nil {
		return err
	}
	if rec.Input, err = s.openBytes(rec.Input, scope("input", rec.Key)); err != nil {
		return err
	}
	for i, step := range rec.Progress.Steps {
		if rec.Progress.Steps[i].Data, err = s.openBytes(step.Data, scope("step "+step.Name, rec.Key)); err != nil {
			return err
		}
	}
	return nil
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

// Store returns a store that seals results before they are kept in inner, and opens them again: for a guard; Recovering
// is for its recovery. InTx is the Postgres store's own: there, Seal inside the work and Open what InTx returned.
// Inputs and the data of steps are sealed too; the names of steps, and the keys that went downstream, are not.
func (s *Sealer) Store(inner store.Store) store.Store {
	return sealedStore{Store: inner, seal: s}
}

// Recovering is Store for a recovery worker: without it, what recovery completes is kept in the open.
func (s *Sealer) Recovering(inner store.Recoverable) store.Recoverable {
	return recoveringStore{sealedStore: sealedStore{Store: inner, seal: s}, Recoverer: inner}
}

type recoveringStore struct {
	sealedStore
	store.Recoverer
}

// Recover opens what it took. What cannot be opened here is not worked at here: its lease ends, and another worker, or
// a person in the end, has it then.
func (s recoveringStore) Recover(ctx context.Context, opt store.RecoverOptions) ([]store.ClaimResult, error) {
	taken, err := s.Recoverer.Recover(ctx, opt)
	var out []store.ClaimResult
	for _, c := range taken {
		if cannot := s.seal.openRecord(&c.Record); cannot != nil {
			err = errors.Join(err, cannot)
			continue
		}
		out = append(out, c)
	}
	return out, err
}

type sealedStore struct {
	store.Store
	seal *Sealer
}

// Finish seals what it stores. Sent again it has other bytes, which changes nothing: the first ones were kept.
func (s sealedStore) Finish(ctx context.Context, l store.Lease, res idempotency.Result,
	keep idempotency.Retention,
) error {
	res, err := s.seal.Seal(l.Key, res)
	if err != nil {
		return err
	}
	return s.Store.Finish(ctx, l, res, keep)
}

// Claim opens what it found. What it cannot open is idempotency.OutcomeUnknown: the work is done, and its answer is
// there for who has the key.
func (s sealedStore) Claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (store.ClaimResult,
	error,
) {
	if r.Input != nil {
		r.Input = s.seal.sealBytes(r.Input, scope("input", r.Key))
	}
	c, err := s.Store.Claim(ctx, r, opt)
	// Of another command nothing is shown, so nothing is opened.
	if err == nil && r.Matches(c.Record.Fingerprint) {
		err = idempotency.OutcomeUnknown(s.seal.openRecord(&c.Record))
	}
	return c, err
}

// Save seals what the steps gave.
func (s sealedStore) Save(ctx context.Context, l store.Lease, p store.Progress) error {
	p.Steps = slices.Clone(p.Steps)
	for i, step := range p.Steps {
		if step.Data != nil {
			p.Steps[i].Data = s.seal.sealBytes(step.Data, scope("step "+step.Name, l.Key))
		}
	}
	return s.Store.Save(ctx, l, p)
}

// Get opens what it found.
func (s sealedStore) Get(ctx context.Context, k idempotency.Key) (store.Record, bool, error) {
	rec, found, err := s.Store.Get(ctx, k)
	if err == nil && found {
		err = idempotency.OutcomeUnknown(s.seal.openRecord(&rec))
	}
	return rec, found, err
}
