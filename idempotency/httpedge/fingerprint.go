package httpedge

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"strings"

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

// canonicalJSON sorts names and drops white space. It is false for what Decode refuses in every JSON body, above all a
// name that is there twice, in whatever case: two readers may understand that differently, so each byte of it counts.
func canonicalJSON(body []byte) ([]byte, bool) {
	if checkJSON(body, nil) != nil {
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return nil, false
	}
	out, err := json.Marshal(v) // sorts the names of a map
	return out, err == nil
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
