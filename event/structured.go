package event

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// contentTypeStructured is the content type of a CloudEvent in the structured mode of the Kafka protocol binding.
// Formats other than JSON are not decoded.
const contentTypeStructured = "application/cloudevents+json"

// isStructured reports whether a content type is contentTypeStructured, perhaps with parameters such as a charset.
func isStructured(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimRight(media, " \t"), contentTypeStructured)
}

// decodeStructured decodes a CloudEvent in the JSON format: attributes as the headers of the binary mode, data as the
// payload. It returns the id. False: value is no CloudEvent, and e is unchanged.
func (e *Event) decodeStructured(value []byte) (id string, ok bool) {
	members, ok := membersOf(value)
	if !ok {
		return "", false
	}
	attributes := map[string]string{}
	for name, raw := range members {
		if name == "data" || name == "data_base64" {
			continue
		}
		if text, ok := attribute(raw); ok {
			attributes[name] = text
		}
	}
	if attributes["specversion"] != "1.0" || attributes["id"] == "" || attributes["source"] == "" ||
		attributes["type"] == "" {
		return "", false
	}
	payload, ok := structuredData(members, attributes["datacontenttype"])
	if !ok {
		return "", false
	}
	e.Payload, e.ContentType = payload, attributes["datacontenttype"]
	if e.ContentType == "" && members["data"] != nil {
		e.ContentType = ContentTypeJSON // the format's default
	}
	id = attributes["id"]
	delete(attributes, "id")
	delete(attributes, "datacontenttype")
	for name, text := range attributes {
		if name = "ce_" + name; !e.decodeAttribute(name, text) {
			if e.Headers == nil {
				e.Headers = map[string]string{}
			}
			e.Headers[name] = text
		}
	}
	return id, true
}

// membersOf returns the members of a JSON object. False: it is none, or has more than [MaxHeaders] members.
func membersOf(value []byte) (map[string]json.RawMessage, bool) {
	dec := json.NewDecoder(bytes.NewReader(value))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, false
	}
	members := map[string]json.RawMessage{}
	for n := 0; dec.More(); n++ {
		name, err := dec.Token()
		if err != nil || n == MaxHeaders {
			return nil, false
		}
		var raw json.RawMessage
		if dec.Decode(&raw) != nil {
			return nil, false
		}
		members[name.(string)] = raw
	}
	if _, err := dec.Token(); err != nil {
		return nil, false
	}
	_, err := dec.Token() // nothing may follow
	return members, errors.Is(err, io.EOF)
}

// attribute is a string, number or boolean as the binary mode writes it; false for null and for what cannot be one.
func attribute(raw json.RawMessage) (string, bool) {
	var text string
	if json.Unmarshal(raw, &text) == nil && !isNull(raw) {
		return text, true
	}
	switch c := raw[0]; {
	case c == 't', c == 'f', c == '-', '0' <= c && c <= '9':
		return string(raw), true
	}
	return "", false
}

// structuredData is the payload: the bytes of data_base64, a text where the content type is not JSON's, else data as it
// stands.
func structuredData(members map[string]json.RawMessage, contentType string) (payload []byte, ok bool) {
	// a null is what some libraries write for what is not there
	if raw, has := members["data_base64"]; has && !isNull(raw) {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			return nil, false
		}
		payload, err := base64.StdEncoding.DecodeString(text)
		return payload, err == nil
	}
	raw, has := members["data"]
	if !has || isNull(raw) {
		return nil, true
	}
	var text string
	if !isJSON(contentType) && json.Unmarshal(raw, &text) == nil {
		return []byte(text), true
	}
	return raw, true
}

func isNull(raw json.RawMessage) bool { return bytes.Equal(raw, []byte("null")) }

// isJSON reports whether a content type is JSON or built on it. None at all means JSON.
func isJSON(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return media == "" || strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}
