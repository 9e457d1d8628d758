package metahttp

import (
	"fmt"
	"net/url"
	"strings"
)

// noKey is upstream's answer (the C++ server's) to a request without a key.
const noKey = "Missing key parameter"

// decodeKey returns the first "key" of a query, or what is wrong with it. The rest of the query is ignored.
func decodeKey(query string, longest int) (key, problem string) {
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		name, value, _ := strings.Cut(pair, "=")
		if name != "key" {
			continue
		}
		key, err := url.QueryUnescape(value)
		switch {
		case err != nil:
			return "", fmt.Sprintf("malformed key: %v", err)
		case key == "":
			return "", noKey
		case len(key) > longest:
			return "", fmt.Sprintf("the key has %d bytes, the limit (max_key) is %d", len(key), longest)
		}
		return key, ""
	}
	return "", noKey
}
