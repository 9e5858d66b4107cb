package main

// instead has Artemis's own command for each command that needs the HTTP API of tidegate, by the
// words of that command.
var instead = map[string]string{
	"peek":    "artemis browser --destination fqqn://TOPIC::TOPIC.GROUP",
	"find":    "artemis browser --destination fqqn://TOPIC::TOPIC.GROUP --filter EXPRESSION",
	"top":     "artemis queue stat",
	"metrics": "the metrics plugin in broker.xml (<metrics>)",
	"console": "Artemis's web console, by default http://HOST:8161/console",
	"api":     "the management API at http://HOST:8161/console/jolokia",

	"topic list":   "artemis address show",
	"topic show":   "artemis address show --name TOPIC --bindings",
	"topic create": "artemis address create --name TOPIC --multicast",
	"topic set":    "the address settings in broker.xml",
	"topic delete": "artemis address delete --name TOPIC",

	"group list":   "artemis queue stat",
	"group show":   "artemis queue stat --queueName TOPIC.GROUP",
	"group create": "artemis queue create --name TOPIC.GROUP --address TOPIC --multicast --durable --preserve-on-no-consumers",
	"group set":    "artemis queue update --name TOPIC.GROUP",
	"group delete": "artemis queue delete --name TOPIC.GROUP",
	"group lag":    "artemis queue stat --queueName TOPIC.GROUP",

	"retry preview": "the address settings redelivery-delay and max-delivery-attempts in broker.xml, and Options.Groups in your program",

	"dead-letters purge": "artemis queue purge --name GROUP.DLQ",
	"dead-letters watch": "artemis consumer --destination queue://GROUP.DLQ, which removes them",

	"limits show":    "the address settings max-size-bytes and address-full-policy in broker.xml",
	"limits set":     "the address settings max-size-bytes and address-full-policy in broker.xml",
	"address list":   "the address settings in broker.xml",
	"address show":   "the address settings in broker.xml",
	"address set":    "the address settings in broker.xml",
	"address delete": "the address settings in broker.xml",
	"apply":          "the addresses, queues and address settings in broker.xml",
	"export":         "artemis data exp",
}
