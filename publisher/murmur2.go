package publisher

// partitionOf is the Java client's default partitioner for a key: toPositive(murmur2(key)) % count.
func partitionOf[T ~string | ~[]byte](key T, count int) int {
	return int(murmur2(key)&0x7fffffff) % count
}

// murmur2 is org.apache.kafka.common.utils.Utils.murmur2: MurmurHash2 with Kafka's seed, little endian.
func murmur2[T ~string | ~[]byte](data T) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(data))
	i := 0
	for ; i+4 <= len(data); i += 4 {
		k := uint32(data[i]) | uint32(data[i+1])<<8 | uint32(data[i+2])<<16 | uint32(data[i+3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h *= m
		h ^= k
	}
	switch len(data) - i {
	case 3:
		h ^= uint32(data[i+2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[i+1]) << 8
		fallthrough
	case 1:
		h ^= uint32(data[i])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}
