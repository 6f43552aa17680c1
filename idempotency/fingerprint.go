package idempotency

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
)

// Fingerprinter makes requests of commands. The zero value makes fingerprints of version 1 of the whole command. It is
// safe for concurrent use.
//
// Records keep fingerprints. A change of Form, Omit, Secret or the command's type needs a higher Version, with the old
// one under Older for as long as its records are kept, so that a retry after the release matches its record. While both
// releases run, the old one refuses the new one's records as another command; to avoid that, list the new version under
// Older one release earlier.
type Fingerprinter struct {
	// Version of the fingerprint, 1 or more. 0 means 1.
	Version int16
	// Form returns the command as this version had it: a field renamed back, a new one left out. It must not change the
	// command. A nil result means that this version did not have such a command: no record of the version matches.
	// Nil: the command itself.
	Form func(command any) (any, error)
	// Omit names top-level members of the command's JSON that do not belong to its meaning: a credential, the key, the
	// number of the attempt. The input omits them too. A field with the tag `json:"-"` needs no entry.
	Omit []string
	// Secret makes the fingerprint an HMAC, so that a reader of the store cannot guess commands with few possible
	// values, such as a card's number. Nil: a plain SHA-256. To rotate it, raise Version.
	Secret []byte
	// Older are the other versions that records may have. Their own Older are ignored.
	Older []Fingerprinter
	// KeepInput makes the command's JSON, without the omitted members, the request's input, from which recovery decodes
	// it with encoding/json. Default: no input.
	KeepInput bool
}

// NewRequest returns the zero Fingerprinter's request: a key with the fingerprint of its validated command (see
// Canonical).
func NewRequest(key Key, command any) (Request, error) {
	return Fingerprinter{}.Request(key, command)
}

// Request returns the request for a validated command (see Canonical) under a key. An error matches ErrInvalidKey or
// ErrInvalidCommand, or is about the versions; nothing was recorded.
func (f Fingerprinter) Request(key Key, command any) (Request, error) {
	if err := key.Check(); err != nil {
		return Request{}, err
	}
	r := Request{Key: key}
	sum, err := f.sum(command)
	if err != nil {
		return Request{}, err
	}
	if sum == nil {
		return Request{}, errors.New("idempotency: the current version's Form returned nil for this command")
	}
	r.Fingerprint = *sum
	seen := map[int16]bool{sum.Version: true}
	for _, old := range f.Older {
		sum, err := old.sum(command)
		if err != nil {
			return Request{}, err
		}
		if seen[old.version()] {
			return Request{}, fmt.Errorf("idempotency: two fingerprints have version %d", old.version())
		}
		seen[old.version()] = true
		if sum != nil {
			r.Older = append(r.Older, *sum)
		}
	}
	if f.KeepInput {
		if r.Input, err = f.plain(command); err != nil {
			return Request{}, err
		}
	}
	return r, nil
}

func (f Fingerprinter) version() int16 {
	if f.Version == 0 {
		return 1
	}
	return f.Version
}

// sum returns the fingerprint of a command, nil if this version has none.
func (f Fingerprinter) sum(command any) (*Fingerprint, error) {
	if f.Version < 0 {
		return nil, fmt.Errorf("idempotency: a fingerprint's version is 1 or more, not %d", f.Version)
	}
	if f.Form != nil {
		form, err := f.Form(command)
		if err != nil || form == nil {
			return nil, err
		}
		command = form
	}
	plain, err := f.plain(command)
	if err != nil {
		return nil, err
	}
	text, err := canonical(plain)
	if err != nil {
		return nil, err
	}
	sum := &Fingerprint{Version: f.version()}
	if f.Secret == nil {
		sum.Sum = sha256.Sum256(text)
		return sum, nil
	}
	mac := hmac.New(sha256.New, f.Secret)
	mac.Write(text)
	mac.Sum(sum.Sum[:0])
	return sum, nil
}

// plain returns a command's JSON without the omitted members.
func (f Fingerprinter) plain(command any) ([]byte, error) {
	plain, err := json.Marshal(command)
	if err != nil {
		return nil, fmt.Errorf("idempotency: a command of type %T cannot be marshaled to JSON: %w", command, err)
	}
	if len(f.Omit) == 0 {
		return plain, nil
	}
	if _, err := canonical(plain); err != nil { // the map would drop one of two members with one name
		return nil, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(plain, &members); err != nil {
		return nil, fmt.Errorf("idempotency: Omit needs a JSON object, and the JSON of a command of type %T is "+
			"none", command)
	}
	for _, name := range f.Omit {
		delete(members, name)
	}
	return json.Marshal(members)
}
