package idempotency

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
)

// Fingerprinter makes requests of commands. The zero value makes fingerprints of version 1 of the whole command; it may
// be used at the same time by many.
//
// What a fingerprint is made of is kept in records: whoever changes it (Form, Omit, Secret, or the command's own type)
// raises Version and lists the former one under Older, for as long as records of it are kept, so that a retry over the
// release still finds its record. While old and new releases run side by side, an old one refuses the new one's records
// as another command; to avoid that, list the new version under Older one release ahead.
type Fingerprinter struct {
	// Version is kept with the fingerprint, 1 or more. 0 means 1.
	Version int16
	// Form returns what the fingerprint of this version is made of: a field renamed back, a new one left out. It must
	// not change the command. A nil result says that this command could not be asked in this version: no record of it
	// matches. Nil is the command as it is.
	Form func(command any) (any, error)
	// Omit names members of the command's JSON, at its top, that are no part of what is asked: a credential, the key
	// itself, the number of the attempt. They are not in the input either. A field of the command's type that never is
	// part of its JSON has the tag `json:"-"`.
	Omit []string
	// Secret makes the fingerprint an HMAC, so that who reads the store cannot try commands with few possible values (a
	// card's number) against it. Nil: a plain SHA-256. To rotate it, raise Version.
	Secret []byte
	// Older are the other versions in which records may have a fingerprint of the same command. Their own Older are not
	// looked at.
	Older []Fingerprinter
	// KeepInput keeps the command's JSON, without what is omitted, as the request's input, from which recovery decodes
	// it with encoding/json. Default: no input.
	KeepInput bool
}

// NewRequest returns the zero Fingerprinter's request: a key with the fingerprint of its validated command (see
// Canonical).
func NewRequest(key Key, command any) (Request, error) {
	return Fingerprinter{}.Request(key, command)
}

// Request returns the request for a validated command (see Canonical) under a key. An error matches ErrInvalidKey, or
// says that the command has no canonical form or the versions are in a muddle; nothing was recorded.
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
		return Request{}, errors.New("idempotency: the current version of the fingerprint has no form of this command")
	}
	r.Fingerprint = *sum
	seen := map[int16]bool{sum.Version: true}
	for _, old := range f.Older {
		sum, err := old.sum(command)
		if err != nil {
			return Request{}, err
		}
		if seen[old.version()] {
			return Request{}, fmt.Errorf("idempotency: two fingerprints of version %d", old.version())
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

// sum returns the fingerprint of a command, nil when this version has no form of it.
func (f Fingerprinter) sum(command any) (*Fingerprint, error) {
	if f.Version < 0 {
		return nil, fmt.Errorf("idempotency: a fingerprint's version is 1 or more, not %d", f.Version)
	}
	if f.Form != nil {
		formed, err := f.Form(command)
		if err != nil || formed == nil {
			return nil, err
		}
		command = formed
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

// plain returns a command's JSON without the members that are omitted.
func (f Fingerprinter) plain(command any) ([]byte, error) {
	plain, err := json.Marshal(command)
	if err != nil {
		return nil, fmt.Errorf("idempotency: a command of type %T is no JSON: %w", command, err)
	}
	if len(f.Omit) == 0 {
		return plain, nil
	}
	if _, err := canonical(plain); err != nil { // of a member that occurs twice, the map would forget one
		return nil, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(plain, &members); err != nil {
		return nil, fmt.Errorf("idempotency: members are to be omitted from a command of type %T, which is no "+
			"JSON object", command)
	}
	for _, name := range f.Omit {
		delete(members, name)
	}
	return json.Marshal(members)
}
