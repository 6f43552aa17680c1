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

// canonicalVersion is the version of Canonical's fingerprints. It is high, so that no version of a command equals it.
const canonicalVersion = 16384

// Canonical returns the fingerprint of method, path, query, media type and body. The order of names in the query and in
// a JSON body, and white space in JSON, do not matter; the spelling of a number does. Headers do not count. Each byte
// of any other body counts, also the random boundary of multipart/form-data: give such routes their own Fingerprint.
func Canonical(r *http.Request, body []byte) idempotency.Fingerprint {
	media := r.Header.Get("Content-Type")
	if parsed, _, err := mime.ParseMediaType(media); err == nil {
		media = parsed
	}
	if media == "application/json" || strings.HasSuffix(media, "+json") {
		if canonical, ok := canonicalJSON(body); ok {
			body = canonical
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

// canonicalJSON sorts names and removes white space. It returns false for a body that Decode would refuse, such as one
// with a name twice, in whatever case: parsers may read it differently, so each byte of it counts.
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

// operation returns the request's pattern, else its method and path, of which a long one is left to the fingerprint.
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
	return r.Method + " (path in the fingerprint)"
}
