package server

import "github.com/tidegate/tidegate/broker/internal/access"

// headerNeeds are needs of RPCs that are known before the request is read: a key that may not send
// to any topic is refused before its bodies come. rpcNeeds decide in any case.
var headerNeeds = map[string]access.Need{"SendMessage": access.ToSendAnywhere()}
