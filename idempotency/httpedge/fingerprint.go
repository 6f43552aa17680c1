package httpedge

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/effectonce/effectonce/idempotency"
)

// canonicalVersion is the version of Canonical's form. It is far from those of commands, so that neither is ever taken
// for the other.
const canonicalVersion = 16384

// Canonical is the fingerprint of a request as bytes: method, path, query, media type and body. The order of names and
// white space do not matter in a JSON body, nor the order of names in the query; a number counts as it is spelled.
// Headers, above all credentials, are left out. Of any other body each byte counts, also the random boundary of
// multipart/form-data: give such routes a Fingerprint of their own.
func Canonical(r *http.Request, body []byte) idempotency.Fingerprint {
	media := r.Header.Get("Content-Type")
	if parsed, _, err := mime.ParseMediaType(media); err == nil {
		media = parsed
	}
	if media == "application/json" || strings.HasSuffix(media, "+json") {
		if same, ok := canonicalJSON(body); ok {
			body = same
		}
	}
	query := r.URL.RawQuery
	if values, err := url.ParseQuery(query); err == nil {
		query = values.Encode()
	}
	text := make([]byte, 0, len(r.URL.Path)+len(query)+len(body)+100)
	for _, part := range []string{r.Method, r.URL.EscapedPath(), query, media} {
		text = append(binary.BigEndian.AppendUint64(text, uint64(len(part))), part...)
	}
	text = append(binary.BigEndian.AppendUint64(text, uint64(len(body))), body...)
	return idempotency.Fingerprint{Version: canonicalVersion, Sum: sha256.Sum256(text)}
}

var errTwice = errors.New("a name is there twice")

// canonicalJSON sorts names and drops white space. It is false for what is not one JSON value, or has a name twice, in
// whatever case: two readers may understand that differently, and Go takes the last one, so each byte of it counts.
func canonicalJSON(body []byte) ([]byte, bool) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	v, err := value(dec, 0)
	if err != nil {
		return nil, false
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, false
	}
	out, err := json.Marshal(v) // sorts the names of a map
	// What is no text (bytes that are not UTF-8, half of a surrogate pair) is read as U+FFFD, whatever it was.
	return out, err == nil && !bytes.ContainsRune(out, utf8.RuneError)
}

func value(dec *json.Decoder, depth int) (any, error) {
	t, err := dec.Token()
	if err != nil {
		return nil, err
	}
	open, nested := t.(json.Delim)
	switch {
	case !nested:
		return t, nil
	case depth > 1000:
		return nil, errors.New("nested too deeply")
	}
	object, list, names := map[string]any{}, []any{}, map[string]bool{}
	for dec.More() {
		if open == '[' {
			v, err := value(dec, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
			continue
		}
		t, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, _ := t.(string) // a name is always a string
		if names[fold(name)] {
			return nil, errTwice
		}
		names[fold(name)] = true
		if object[name], err = value(dec, depth+1); err != nil {
			return nil, err
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if open == '[' {
		return list, nil
	}
	return object, nil
}

// operation is what a request asks for, as far as its router has said.
func operation(r *http.Request) string {
	if r.Pattern != "" {
		if strings.Contains(r.Pattern, " ") {
			return r.Pattern
		}
		return r.Method + " " + r.Pattern
	}
	name := r.Method + " " + r.URL.EscapedPath()
	if len(name) <= idempotency.MaxKey {
		return name
	}
	return "the rest is told by the fingerprint: " + r.Method
}
