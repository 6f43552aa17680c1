package httpedge

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

// headerSealed is the header of a stored result whose header and body are encrypted, with the name of the key.
const headerSealed = "Effectonce-Sealed"

// ErrSealed: sealed bytes cannot be opened: the Sealer does not have their key, or they were changed or moved.
var ErrSealed = errors.New("a sealed result cannot be opened")

// Sealer encrypts header and body of stored answers with AES-GCM, so that readers of the store or its backups cannot
// see them. Its Store also encrypts inputs, the data of steps, and reasons, which have providers' texts. Code, Failure,
// Resource and Schema are not encrypted: they are kept after the body. Tenant, operation and key are authenticated: a
// body that is moved to another record cannot be opened. Bytes that were stored without a Sealer are read unchanged. It
// is safe for concurrent use.
type Sealer struct {
	current string
	keys    map[string]cipher.AEAD
}

// NewSealer returns a Sealer that seals with the key named current and opens with all keys, each of 16, 24 or 32 bytes.
// To rotate: add the new key everywhere, then make it current, and remove the old one after everything sealed with it
// has expired. Use a key for at most 2^32 answers (NIST SP 800-38D, 8.3: nonces are random).
func NewSealer(current string, keys map[string][]byte) (*Sealer, error) {
	s := &Sealer{current: current, keys: map[string]cipher.AEAD{}}
	for id, key := range keys {
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("sealing key %q has %d bytes; want 16, 24 or 32", id, len(key))
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

// sealed is the plaintext of a sealed result.
type sealed struct {
	Header map[string][]string `json:"h,omitempty"`
	Body   []byte              `json:"b"`
}

// Seal returns res for storing under k. A result without header and body is returned unchanged.
func (s *Sealer) Seal(k idempotency.Key, res idempotency.Result) (idempotency.Result, error) {
	if res.Body == nil && len(res.Header) == 0 {
		return res, nil
	}
	plain, err := json.Marshal(sealed{Header: res.Header, Body: res.Body})
	if err != nil {
		return res, fmt.Errorf("seal a result: %w", err)
	}
	res.Body = s.keys[s.current].Seal(nil, nil, plain, scope("result", k))
	res.Header = map[string][]string{headerSealed: {s.current}}
	return res, nil
}

// Open returns a stored result as it was before Seal. An error matches ErrSealed. A result that is not sealed, or whose
// body has expired, is returned unchanged.
func (s *Sealer) Open(k idempotency.Key, res idempotency.Result) (idempotency.Result, error) {
	ids := res.Header[headerSealed]
	if len(ids) != 1 {
		return res, nil
	}
	plain, err := s.open(ids[0], res.Body, scope("result", k))
	if err != nil {
		return res, err
	}
	var opened sealed
	if err := json.Unmarshal(plain, &opened); err != nil {
		return res, fmt.Errorf("%w: %w", ErrSealed, err)
	}
	res.Header, res.Body = opened.Header, opened.Body
	return res, nil
}

func (s *Sealer) open(id string, data, scope []byte) ([]byte, error) {
	gcm := s.keys[id]
	if gcm == nil {
		return nil, fmt.Errorf("%w: the Sealer does not have the key %q", ErrSealed, id)
	}
	plain, err := gcm.Open(nil, nil, data, scope)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSealed, err)
	}
	return plain, nil
}

// sealPrefix begins sealed bytes; the name of the key and a zero byte follow.
const sealPrefix = "\x00effectonce sealed\x00"

func (s *Sealer) sealBytes(plain, scope []byte) []byte {
	return s.keys[s.current].Seal([]byte(sealPrefix+s.current+"\x00"), nil, plain, scope)
}

// openBytes returns bytes as they were before sealBytes; bytes that are not sealed are returned unchanged.
func (s *Sealer) openBytes(data, scope []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(data, []byte(sealPrefix))
	if !ok {
		return data, nil
	}
	id, rest, _ := bytes.Cut(rest, []byte{0})
	return s.open(string(id), rest, scope)
}

// sealText is sealBytes for text: a reason, which an operator's tool without a Sealer shows as it is.
func (s *Sealer) sealText(plain string, scope []byte) string {
	if plain == "" {
		return ""
	}
	return sealedText + s.current + " " + base64.StdEncoding.EncodeToString(s.keys[s.current].Seal(nil, nil,
		[]byte(plain), scope))
}

// openText returns text as it was before sealText; text that is not sealed is returned unchanged.
func (s *Sealer) openText(text string, scope []byte) (string, error) {
	rest, ok := strings.CutPrefix(text, sealedText)
	id, encoded, found := cutLast(rest, " ")
	if !ok || !found {
		return text, nil
	}
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrSealed, err)
	}
	plain, err := s.open(id, data, scope)
	return string(plain), err
}

// sealedText begins sealed text; the name of the key and a space follow.
const sealedText = "effectonce sealed "

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", "", false
	}
	return s[:i], s[i+len(sep):], true
}

// openRecord opens the reason, the input, the steps and the result of a record.
func (s *Sealer) openRecord(rec *store.Record) (err error) {
	if rec.Result, err = s.Open(rec.Key, rec.Result); err != nil {
		return err
	}
	if rec.Reason, err = s.openText(rec.Reason, scope("reason", rec.Key)); err != nil {
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

// scope returns the additional data that binds a ciphertext to its place. Lengths make it unambiguous.
func scope(field string, k idempotency.Key) []byte {
	var b []byte
	for _, part := range []string{field, k.Tenant, k.Operation, k.Value} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return b
}

// Store returns a store for a guard that seals results before it stores them in inner, and opens them; see Recovering
// for recovery. With pgstore's InTx, call Seal inside the work and Open on the result. Inputs, the data of steps and
// reasons are sealed too; the names and downstream keys of steps are not.
func (s *Sealer) Store(inner store.Store) store.Store {
	return sealedStore{Store: inner, seal: s}
}

// Recovering is Store for a recovery worker, whose results would not be sealed otherwise.
func (s *Sealer) Recovering(inner store.Recoverable) store.Recoverable {
	return recoveringStore{sealedStore: sealedStore{Store: inner, seal: s}, Recoverer: inner}
}

type recoveringStore struct {
	sealedStore
	store.Recoverer
}

// Postpone seals the reason.
func (s recoveringStore) Postpone(ctx context.Context, l store.Lease, reason string, delay time.Duration,
	stuck bool,
) error {
	return s.Recoverer.Postpone(ctx, l, s.seal.sealText(reason, scope("reason", l.Key)), delay, stuck)
}

// Recover opens the records. It returns none that cannot be opened: another worker, or a person in the end, gets the
// key after the lease.
func (s recoveringStore) Recover(ctx context.Context, opt store.RecoverOptions) ([]store.ClaimResult, error) {
	claimed, err := s.Recoverer.Recover(ctx, opt)
	var out []store.ClaimResult
	for _, c := range claimed {
		if openErr := s.seal.openRecord(&c.Record); openErr != nil {
			err = errors.Join(err, openErr)
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

// Finish seals the result. Sent again it has other bytes, which inner ignores.
func (s sealedStore) Finish(ctx context.Context, l store.Lease, res idempotency.Result,
	keep idempotency.Retention,
) error {
	res, err := s.seal.Seal(l.Key, res)
	if err != nil {
		return err
	}
	return s.Store.Finish(ctx, l, res, keep)
}

// Claim opens the record. An error of that is outcome.Unknown: the work is done, and a Sealer with the key
// can open its answer.
func (s sealedStore) Claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (store.ClaimResult,
	error,
) {
	if r.Input != nil {
		r.Input = s.seal.sealBytes(r.Input, scope("input", r.Key))
	}
	c, err := s.Store.Claim(ctx, r, opt)
	// The record of another command is not shown, and need not be opened.
	if err == nil && r.Matches(c.Record.Fingerprint) {
		err = outcome.Unknown(s.seal.openRecord(&c.Record))
	}
	return c, err
}

// MarkUnknown seals the reason.
func (s sealedStore) MarkUnknown(ctx context.Context, l store.Lease, reason string, delay time.Duration) error {
	return s.Store.MarkUnknown(ctx, l, s.seal.sealText(reason, scope("reason", l.Key)), delay)
}

// Save seals the data of the steps.
func (s sealedStore) Save(ctx context.Context, l store.Lease, p store.Progress) error {
	p.Steps = slices.Clone(p.Steps)
	for i, step := range p.Steps {
		if step.Data != nil {
			p.Steps[i].Data = s.seal.sealBytes(step.Data, scope("step "+step.Name, l.Key))
		}
	}
	return s.Store.Save(ctx, l, p)
}

// Get opens the record.
func (s sealedStore) Get(ctx context.Context, k idempotency.Key) (store.Record, bool, error) {
	rec, found, err := s.Store.Get(ctx, k)
	if err == nil && found {
		err = outcome.Unknown(s.seal.openRecord(&rec))
	}
	return rec, found, err
}
