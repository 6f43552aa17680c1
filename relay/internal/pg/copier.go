package pg

import "bytes"

const (
	// slabSize is the number of bytes of small values that share an allocation and are freed together.
	slabSize = 256 << 10
	// mostTexts limits the number of cached texts.
	mostTexts = 10_000
)

// Copier copies values out of a connection's buffer with few allocations.
type Copier struct {
	texts map[string]string
	slab  []byte
}

// Text copies a value of a column with few distinct values, such as a topic.
func (c *Copier) Text(v []byte) string {
	s, ok := c.texts[string(v)]
	if !ok {
		if len(c.texts) >= mostTexts {
			clear(c.texts)
		}
		if c.texts == nil {
			c.texts = make(map[string]string, 16)
		}
		s = string(v)
		c.texts[s] = s
	}
	return s
}

// Bytes copies a payload: small ones share allocations. Nil stays nil, and empty does not become nil.
func (c *Copier) Bytes(v []byte) []byte {
	switch {
	case v == nil:
		return nil
	case len(v) > slabSize/4:
		return bytes.Clone(v)
	case len(v) > cap(c.slab)-len(c.slab), c.slab == nil:
		c.slab = make([]byte, 0, slabSize)
	}
	at := len(c.slab)
	c.slab = append(c.slab, v...)
	return c.slab[at:len(c.slab):len(c.slab)]
}
