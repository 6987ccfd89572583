@description('Part of the names of all resources.')
param suffix string

@description('Region of all resources.')
param location string

@description('Tags of all resources.')
param tags object

@description('Object id of the Entra administrator.')
param administratorId string

@description('Name of the Entra administrator.')
param administratorName string

@description('Kind of the Entra administrator.')
param administratorType string

@description('Address from which the administrator makes the tables; empty: from inside Azure only.')
param administratorAddress string

var databaseName = 'shop'

resource server 'Microsoft.DBforPostgreSQL/flexibleServers@2024-08-01' = {
  name: 'psql-${suffix}'
  location: location
  tags: tags
  sku: {
    name: 'Standard_B1ms'
    tier: 'Burstable'
  }
  properties: {
    version: '16'
    storage: {
      storageSizeGB: 32
    }
    backup: {
      backupRetentionDays: 7
    }
    // No password exists: who comes in shows a token.
    authConfig: {
      activeDirectoryAuth: 'Enabled'
      passwordAuth: 'Disabled'
      tenantId: tenant().tenantId
    }
  }
}

resource administrator 'Microsoft.DBforPostgreSQL/flexibleServers/administrators@2024-08-01' = {
  parent: server
  name: administratorId
  properties: {
    principalName: administratorName
    principalType: administratorType
    tenantId: tenant().tenantId
  }
}

// The server takes one change at a time.
resource database 'Microsoft.DBforPostgreSQL/flexibleServers/databases@2024-08-01' = {
  parent: server
  name: databaseName
  dependsOn: [administrator]
}

// 0.0.0.0 means: from any address inside Azure, the app's among them. A virtual network is narrower.
resource insideAzure 'Microsoft.DBforPostgreSQL/flexibleServers/firewallRules@2024-08-01' = {
  parent: server
  name: 'inside-azure'
  properties: {
    startIpAddress: '0.0.0.0'
    endIpAddress: '0.0.0.0'
  }
  dependsOn: [database]
}

resource outside 'Microsoft.DBforPostgreSQL/flexibleServers/firewallRules@2024-08-01' = if (!empty(administratorAddress)) {
  parent: server
  name: 'administrator'
  properties: {
    startIpAddress: administratorAddress
    endIpAddress: administratorAddress
  }
  dependsOn: [insideAzure]
}

output host string = server.properties.fullyQualifiedDomainName
output name string = databaseName
