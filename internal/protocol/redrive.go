package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

const (
	redriveSuffix = ".redrive-"

	maxMessageID     = 255 // bytes
	maxRedriveDigits = 10  // of the number of a redrive
)

// RedrivenID returns the new ID of a dead letter that a client sends back: the first ID of the
// message with the suffix ".redrive-N". The message has been redriven redrives times before.
func RedrivenID(id string, redrives int) string {
	return FirstID(id, redrives) + redriveSuffix + strconv.Itoa(redrives+1)
}

// FirstID returns the ID before all redrives of a message that has been redriven redrives times. A
// long ID is replaced by its hash, because the message has the hash when it returns.
func FirstID(id string, redrives int) string {
	id = strings.TrimSuffix(id, redriveSuffix+strconv.Itoa(redrives))
	if len(id) > maxMessageID-len(redriveSuffix)-maxRedriveDigits {
		sum := sha256.Sum256([]byte(id))
		id = hex.EncodeToString(sum[:])
	}
	return id
}

// CutRedrive returns the first ID and the number of redrives of an ID that RedrivenID returned. For
// other IDs it returns the ID and 0.
func CutRedrive(id string) (first string, redrives int) {
	i := strings.LastIndex(id, redriveSuffix)
	if i <= 0 {
		return id, 0
	}
	number := id[i+len(redriveSuffix):]
	n, err := strconv.Atoi(number)
	if err != nil || n <= 0 || strconv.Itoa(n) != number {
		return id, 0
	}
	return id[:i], n
}
